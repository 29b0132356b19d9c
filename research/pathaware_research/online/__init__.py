"""Comparisons of online learners on streams of data sets."""
