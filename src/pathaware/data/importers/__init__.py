"""Importers of data sets in their common distributions, one module per data set."""
