"""miniImageNet as class folders, as one folder with csv lists, or as pickle caches."""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from pathaware.core.errors import UsageError
from pathaware.data.importers.folder import class_folders, in_tree
from pathaware.data.importers.pickles import PickleReader, as_text, text_keys
from pathaware.data.importers.source import (
    ImportRefused,
    Listing,
    Pixels,
    SourceImage,
    by_lists,
    class_lists,
    exactly,
)
from pathaware.data.importers.trees import Tree, open_tree, read
from pathaware.data.pixels import PHOTO_84, ImageFormat

_CACHE = re.compile(r"mini-imagenet-cache-(train|val|test)\.pkl")
_LISTS = ("train.csv", "val.csv", "test.csv")
_ACCEPTED = (
    "class folders (n01532829/…), an images folder with train.csv, val.csv and test.csv, "
    "or mini-imagenet-cache-{train,val,test}.pkl"
)


@dataclass(frozen=True)
class MiniImageNet:
    """Imports miniImageNet, split by the class lists of Ravi and Larochelle whatever the copy's folders."""

    images_per_class: int = 600
    format: ImageFormat = PHOTO_84

    def read(self, source: Path) -> Listing:
        tree = open_tree(source)
        lists = class_lists("mini_imagenet")
        caches = [n for n in tree.names if _CACHE.fullmatch(PurePosixPath(n).name)]
        tables = [n for n in tree.names if PurePosixPath(n).name in _LISTS]
        if caches:
            origin, found = "pickle caches", _from_caches(tree, caches)
        elif found := class_folders(tree, lists):
            origin = "class folders"
        elif tables:
            origin, found = "images with csv lists", _from_tables(tree, tables)
        else:
            raise UsageError(f"{source}: no miniImageNet found; accepted are {_ACCEPTED}")
        return Listing(origin, by_lists(source, found, lists, exactly(self.images_per_class)))


def _from_tables(tree: Tree, tables: list[str]) -> dict[str, list[SourceImage]]:
    by_file_name = {PurePosixPath(n).name: n for n in tree.names}
    found: dict[str, list[SourceImage]] = defaultdict(list)
    missing = []
    for table in tables:
        try:
            rows = csv.DictReader(io.StringIO(read(tree, table).decode("utf-8-sig")))
        except UnicodeDecodeError as error:
            raise UsageError(f"{tree.label(table)}: not UTF-8 text ({error})") from None
        if not {"filename", "label"} <= set(rows.fieldnames or ()):
            raise UsageError(f"{tree.label(table)}: the first line must be a header with filename and label")
        for row in rows:
            name = by_file_name.get(PurePosixPath(row["filename"]).name)
            if name is None:
                missing.append(f"{row['filename']}: listed in {tree.label(table)} but missing")
            else:
                found[row["label"]].append(in_tree(tree, name))
    if missing:
        raise ImportRefused(tree.label(tables[0]), missing)
    return found


def _from_caches(tree: Tree, caches: list[str]) -> dict[str, list[SourceImage]]:
    pickles = PickleReader(tree)
    found: dict[str, list[SourceImage]] = defaultdict(list)
    for name in caches:
        label = tree.label(name)
        images, classes = _cache(pickles.load(name), label)
        for class_name, indices in classes.items():
            for index in map(int, indices):
                if not 0 <= index < len(images):
                    raise UsageError(f"{label}: class {as_text(class_name)} has no image {index}")
                pixels = partial(_cached_pixels, pickles, name, index)
                found[as_text(class_name)].append(SourceImage(f"{label}, image {index}", pixels))
        del images
    return found


def _cache(document: Any, label: str) -> tuple[Pixels, dict[Any, Any]]:
    content = text_keys(document, label)
    images, classes = content.get("image_data"), content.get("class_dict")
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[3:] != (3,):
        raise UsageError(f"{label}: image_data must be a uint8 array [images, height, width, 3]")
    if not isinstance(classes, dict):
        raise UsageError(f"{label}: class_dict must give the image indices of each class")
    return images, classes


def _cached_pixels(pickles: PickleReader, name: str, index: int) -> Pixels:
    pixels: Pixels = _cache(pickles.load(name), name)[0][index]
    return pixels
