"""Data sets on disk: importers, the packed image store, official class lists."""

from __future__ import annotations

from pathaware.data.catalogue import IMPORTERS, imported_stores, open_store
from pathaware.data.importing import import_dataset
from pathaware.data.catalogue import data_dir
from pathaware.data.store import ImageStore

__all__ = ["IMPORTERS", "ImageStore", "data_dir", "import_dataset", "imported_stores", "open_store"]
