"""Data sets by name: which are known, where they are stored, and how to open one."""

from __future__ import annotations

import re
from pathlib import Path

from pathaware.core.errors import UsageError, did_you_mean
from pathaware.core.settings import data_dir as data_dir
from pathaware.core.writing import beside, restore_folder
from pathaware.data.importers.cifar import Cifar100
from pathaware.data.importers.mini_imagenet import MiniImageNet
from pathaware.data.importers.omniglot import Omniglot
from pathaware.data.importers.source import Importer
from pathaware.data.importers.tiered_imagenet import TieredImageNet
from pathaware.data.store import MANIFEST, ImageStore

GLYPHS = "glyphs"
IMPORTERS: dict[str, Importer] = {
    "miniimagenet": MiniImageNet(),
    "cifar-fs": Cifar100("cifar_fs"),
    "fc100": Cifar100("fc100"),
    "tieredimagenet": TieredImageNet(),
    "omniglot": Omniglot(),
}


def store_folder(name: str, chosen: Path | None = None) -> Path:
    """Return the folder of a data set, or raise if `name` cannot be a folder name."""
    # A leading dot is reserved for imports in progress.
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UsageError(
            f"data set name {name!r}: must begin with a letter or digit, then only those, '.', '_' and '-'"
        )
    folder = data_dir(chosen) / name
    restore_folder(folder)
    return folder


def open_store(name: str, directory: Path | None = None) -> ImageStore:
    """Open a data set by name. `glyphs` is drawn on first use; the others must be imported first."""
    folder = store_folder(name, directory)
    if (folder / MANIFEST).is_file():
        return ImageStore.open(folder)
    if name == GLYPHS:
        from pathaware.data.glyphs import make_glyphs

        return make_glyphs(folder)
    available = sorted({GLYPHS} | {path.name for path in imported_stores(directory)})
    raise UsageError(
        f"data set {name!r}: not in {folder.parent} (available: {', '.join(available)}); "
        f"import it with `pathaware data import {name} --from FOLDER`"
        f"{'' if name in IMPORTERS else did_you_mean(name, [*IMPORTERS, *available])}"
    )


def imported_stores(directory: Path | None = None) -> list[Path]:
    """Return the folders of all stores, sorted by name."""
    folder = data_dir(directory)
    ending = beside(folder / "*", "old").name.partition("*")[2]
    for old in folder.glob(f".*{ending}"):
        restore_folder(folder / old.name[1 : -len(ending)])
    return [path.parent for path in sorted(folder.glob(f"[!.]*/{MANIFEST}"))]
