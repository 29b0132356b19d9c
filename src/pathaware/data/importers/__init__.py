"""The forms in which data sets circulate, one module each."""
