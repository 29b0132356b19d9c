"""Commands of research."""
