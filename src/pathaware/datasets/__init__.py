"""Data sets on disk: importers, the packed image store, official class lists."""
