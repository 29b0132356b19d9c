"""CIFAR-FS and FC100: two splits of the 100 classes of CIFAR-100."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from pathaware.core.errors import UsageError
from pathaware.data.importers.folder import class_folders
from pathaware.data.importers.pickles import as_text, read_pickle, text_keys
from pathaware.data.importers.source import Listing, Pixels, SourceImage, by_lists, class_lists, exactly
from pathaware.data.importers.trees import Tree, open_tree
from pathaware.data.pixels import PHOTO_32, ImageFormat
from pathaware.data.store import counted


@dataclass(frozen=True)
class Cifar100:
    """Imports class folders or the original Python version; its train and test images are merged."""

    lists: Literal["cifar_fs", "fc100"]
    images_per_class: int = 600
    format: ImageFormat = PHOTO_32

    def read(self, source: Path) -> Listing:
        tree = open_tree(source)
        lists = class_lists(self.lists)
        metas = [n for n in tree.names if PurePosixPath(n).name == "meta"]
        if metas:
            origin, found = "the original python version", _from_python(tree, PurePosixPath(metas[0]).parent)
        elif found := class_folders(tree, lists):
            origin = "class folders"
        else:
            raise UsageError(
                f"{source}: no CIFAR-100 found; accepted are class folders (apple/…) and the original "
                "cifar-100-python folder or .tar.gz"
            )
        return Listing(origin, by_lists(source, found, lists, exactly(self.images_per_class)))


def _from_python(tree: Tree, folder: PurePosixPath) -> dict[str, list[SourceImage]]:
    meta, train, test = (_document(tree, str(folder / part)) for part in ("meta", "train", "test"))
    names = [as_text(n) for n in meta.get("fine_label_names", ())]
    found: dict[str, list[SourceImage]] = defaultdict(list)
    for part, content in (("train", train), ("test", test)):
        label = tree.label(str(folder / part))
        data, labels = content.get("data"), content.get("fine_labels")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3 * 32 * 32,):
            raise UsageError(f"{label}: data must be a uint8 array [images, 3072]")
        if not isinstance(labels, list) or len(labels) != len(data):
            raise UsageError(f"{label}: fine_labels must give one label per image")
        for index, number in enumerate(labels):
            if not 0 <= number < len(names):
                raise UsageError(
                    f"{label}: image {index} has label {number}, meta names {counted(len(names), 'class')}"
                )
            image = SourceImage(f"{label}, image {index}", partial(_pixels, data[index]))
            found[names[number]].append(image)
    return found


def _document(tree: Tree, name: str) -> dict[str, Any]:
    document = read_pickle(tree, name, "cifar-100-python consists of meta, train and test")
    return text_keys(document, tree.label(name))


def _pixels(row: Pixels) -> Pixels:
    # Stored by channel: all red values, then green, then blue.
    return row.reshape(3, 32, 32).transpose(1, 2, 0)
