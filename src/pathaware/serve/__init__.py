"""A web page and a JSON API that adapt a trained model to the classes of its visitors."""
