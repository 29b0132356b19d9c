"""How fast the engine is, beside other libraries and as its tasks grow: `pathaware bench`."""
