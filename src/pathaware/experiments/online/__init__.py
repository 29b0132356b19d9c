"""Comparisons of online learners on a stream of data sets."""
