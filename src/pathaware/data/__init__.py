"""Tasks and data sets: packed image stores, importers, few-shot episodes, sine waves, glyphs."""

from __future__ import annotations

from pathaware.data.catalogue import IMPORTERS, data_dir, imported_stores, open_store
from pathaware.data.episodes import ImageEpisodes
from pathaware.data.importing import import_dataset
from pathaware.data.pixels import ImageInput
from pathaware.data.sine import SineWaves
from pathaware.data.store import ImageStore
from pathaware.data.unlabelled import UnlabelledEpisodes

__all__ = [
    "IMPORTERS",
    "ImageEpisodes",
    "ImageInput",
    "ImageStore",
    "SineWaves",
    "UnlabelledEpisodes",
    "data_dir",
    "import_dataset",
    "imported_stores",
    "open_store",
]
