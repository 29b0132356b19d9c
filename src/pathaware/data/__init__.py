"""Tasks and data sets: packed image stores, importers, few-shot episodes, sine waves, glyphs."""

from __future__ import annotations

from pathaware.data.catalogue import IMPORTERS, data_dir, imported_stores, open_store
from pathaware.data.importing import import_dataset
from pathaware.data.store import ImageStore

__all__ = ["IMPORTERS", "ImageStore", "data_dir", "import_dataset", "imported_stores", "open_store"]
