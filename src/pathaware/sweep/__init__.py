"""Sweeps: many runs from one file, on this machine or a cluster, and one table of their results."""
