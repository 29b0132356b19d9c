"""How adaptation is made fast; the numbers stay those of a plain loop."""
