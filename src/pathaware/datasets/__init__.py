"""Data sets on disk: importers, the packed image store, official class lists."""

from __future__ import annotations

from pathaware.datasets.catalogue import LAYOUTS, imported, open_store
from pathaware.datasets.importing import import_dataset
from pathaware.datasets.location import data_dir
from pathaware.datasets.store import ImageStore

__all__ = ["LAYOUTS", "ImageStore", "data_dir", "import_dataset", "imported", "open_store"]
