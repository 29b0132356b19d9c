"""Where episodes come from."""
