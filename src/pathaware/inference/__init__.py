"""Using what was trained: a few labelled pictures in, a classifier out."""
