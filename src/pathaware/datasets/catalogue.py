"""Data sets by name: which are known, which are imported, and how to open one."""

from __future__ import annotations

from pathlib import Path

from pathaware.datasets.layouts.cifar import Cifar100
from pathaware.datasets.layouts.mini_imagenet import MiniImageNet
from pathaware.datasets.layouts.omniglot import Omniglot
from pathaware.datasets.layouts.tiered_imagenet import TieredImageNet
from pathaware.datasets.location import data_dir, store_folder
from pathaware.datasets.sources import Layout
from pathaware.datasets.store import MANIFEST, ImageStore
from pathaware.errors import UsageError

GLYPHS = "glyphs"
LAYOUTS: dict[str, Layout] = {
    "miniimagenet": MiniImageNet(),
    "cifar-fs": Cifar100("cifar_fs"),
    "fc100": Cifar100("fc100"),
    "tieredimagenet": TieredImageNet(),
    "omniglot": Omniglot(),
}


def open_store(name: str, directory: Path | None = None) -> ImageStore:
    """Open a data set by name. `glyphs` is made when it is first asked for; the others must be imported."""
    folder = store_folder(name, directory)
    if (folder / MANIFEST).is_file():
        return ImageStore.open(folder)
    if name == GLYPHS:
        from pathaware.datasets.glyphs import make_glyphs

        return make_glyphs(folder)
    there = sorted({GLYPHS} | {path.name for path in imported(directory)})
    raise UsageError(
        f"data set {name!r}: not in {folder.parent} (there: {', '.join(there)}); "
        f"import it with `pathaware data import {name} --from PATH`"
    )


def imported(directory: Path | None = None) -> list[Path]:
    """The folders of all stores there are, by name."""
    return [path.parent for path in sorted(data_dir(directory).glob(f"[!.]*/{MANIFEST}"))]
