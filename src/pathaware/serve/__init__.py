"""`pathaware serve`: a page and a JSON API on which people teach a trained model their own classes."""
