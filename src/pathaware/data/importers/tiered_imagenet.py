"""tieredImageNet as ImageNet class folders, or as pickles of PNG-encoded images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from pathaware.core.errors import UsageError
from pathaware.data.importers.folder import class_folders
from pathaware.data.importers.pickles import PickleReader, as_text, read_pickle, text_keys
from pathaware.data.importers.source import (
    ImportRefused,
    Listing,
    SourceClass,
    SourceImage,
    at_least,
    by_lists,
    class_lists,
    refuse_miscounted,
)
from pathaware.data.importers.trees import Tree, open_tree
from pathaware.data.pixels import PHOTO_84, ImageFormat
from pathaware.data.store import SPLITS, Split, counted


@dataclass(frozen=True)
class TieredImageNet:
    """Imports 608 classes of ImageNet, split by category: 351 for training, 97 validation, 160 test."""

    min_images: int = 732
    """The size of ImageNet's smallest class; classes have up to 1,300 images."""
    images_per_split: tuple[int, int, int] | None = (448_695, 124_261, 206_209)
    format: ImageFormat = PHOTO_84

    def read(self, source: Path) -> Listing:
        tree = open_tree(source)
        lists = class_lists("tiered_imagenet")
        pickles = [n for n in tree.names if n.endswith("_images_png.pkl")]
        if pickles:
            origin, classes = "pickles of PNG images", _from_pickles(tree, pickles)
            refuse_miscounted(source, classes, at_least(self.min_images))
        elif found := class_folders(tree, lists):
            origin, classes = "class folders", by_lists(source, found, lists, at_least(self.min_images))
        else:
            raise UsageError(
                f"{source}: no tieredImageNet found; accepted are ImageNet class folders (n01530575/…) and "
                "{train,val,test}_images_png.pkl with {train,val,test}_labels.pkl"
            )
        self._check_totals(source, classes, {split: len(names) for split, names in lists.items()})
        return Listing(origin, classes)

    def _check_totals(self, source: Path, classes: list[SourceClass], expected: Mapping[Split, int]) -> None:
        problems = []
        for position, split in enumerate(SPLITS):
            here = [c for c in classes if c.split == split]
            images = sum(len(c.images) for c in here)
            required = images if self.images_per_split is None else self.images_per_split[position]
            if len(here) != expected[split]:
                problems.append(f"{split}: {counted(len(here), 'class')} found, {expected[split]} expected")
            if images != required:
                problems.append(f"{split}: {images:,} images found, {required:,} expected")
        if problems:
            raise ImportRefused(source, problems)


def _from_pickles(tree: Tree, pickles: list[str]) -> list[SourceClass]:
    """Read the pickles, which follow the split already and name classes by words instead of ids."""
    reader = PickleReader(tree)
    by_split = {PurePosixPath(n).name.removesuffix("_images_png.pkl"): n for n in pickles}
    classes = []
    for split in SPLITS:
        if split not in by_split:
            raise UsageError(f"{tree.label(pickles[0])}: {split}_images_png.pkl is missing beside it")
        file = by_split[split]
        label = tree.label(file)
        numbers, names = _labels(tree, str(PurePosixPath(file).with_name(f"{split}_labels.pkl")))
        if len(numbers) != len(reader.load(file)):
            raise UsageError(
                f"{label}: {counted(len(reader.load(file)), 'image')} for {counted(len(numbers), 'label')}"
            )
        for number in np.unique(numbers).tolist():
            images = [
                SourceImage(f"{label}, image {index}", partial(_encoded, reader, file, index))
                for index in np.flatnonzero(numbers == number).tolist()
            ]
            words = names[number] if number < len(names) else f"class {number}"
            # Two synsets can share their words ("crane", the bird and the machine) but not their number.
            classes.append(SourceClass(f"{split}/{number:03d} {words}", split, images))
    return classes


def _labels(tree: Tree, name: str) -> tuple[NDArray[np.int64], list[str]]:
    label = tree.label(name)
    content = text_keys(read_pickle(tree, name, "it has the labels of the images beside it"), label)
    numbers = np.asarray(content.get("label_specific", ()))
    if numbers.ndim != 1 or numbers.size == 0 or numbers.dtype.kind not in "iu":
        raise UsageError(f"{label}: label_specific must be one integer per image")
    words = next((content[k] for k in ("catnames_specific", "label_specific_str") if k in content), ())
    return numbers.astype(np.int64), [as_text(w) for w in words]


def _encoded(reader: PickleReader, file: str, index: int) -> bytes:
    encoded = reader.load(file)[index]
    return encoded if isinstance(encoded, bytes) else np.asarray(encoded, dtype=np.uint8).tobytes()
