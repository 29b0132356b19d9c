"""Class folders: those of the published sets, found by name anywhere in a tree, and folders of your own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import torch

from pathaware.core.errors import UsageError
from pathaware.core.reading import read_file
from pathaware.core.seeding import generator
from pathaware.data.importers.source import (
    ImportRefused,
    Listing,
    SourceClass,
    SourceImage,
    at_least,
    refuse_miscounted,
)
from pathaware.data.importers.trees import FolderTree, Tree, open_tree, read
from pathaware.data.pixels import PHOTO_84, UNREADABLE_SUFFIXES, ImageFormat
from pathaware.data.store import SPLITS, Split

SPLIT_FOLDERS: dict[str, Split] = {
    "train": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}


def class_folders(tree: Tree, lists: Mapping[Split, Iterable[str]]) -> dict[str, list[SourceImage]]:
    """Return the files in every folder named after a listed class.

    Folders of the same name are merged: CIFAR-100 keeps a class's images in `train/` and `test/`, and some
    copies of miniImageNet use three folders; neither is the split of few-shot learning.
    """
    listed = {name for names in lists.values() for name in names}
    found: dict[str, list[SourceImage]] = defaultdict(list)
    for name in tree.names:
        folders = PurePosixPath(name).parent.parts
        named = next((f for f in reversed(folders) if f in listed), None)
        if named is not None:
            found[named].append(in_tree(tree, name))
    return dict(found)


def in_tree(tree: Tree, name: str) -> SourceImage:
    file = tree.root / name if isinstance(tree, FolderTree) else None
    return SourceImage(tree.label(name), partial(read, tree, name), file)


@dataclass(frozen=True)
class FolderImporter:
    """Imports class folders: a folder that contains images is a class, named by its path.

    The split is given by `split_lists` (a folder with train.txt, val.txt, test.txt), by random
    `proportions`, or else by the sub-folders `train/`, `val/` and `test/`.
    """

    format: ImageFormat = PHOTO_84
    split_lists: Path | None = None
    proportions: Sequence[float] | None = None
    seed: int = 0
    min_images: int = 2

    def __post_init__(self) -> None:
        if self.min_images < 1:
            raise UsageError(f"must be at least 1, not {self.min_images}", field="min_images")
        if self.split_lists is not None and self.proportions is not None:
            raise UsageError("cannot be combined with proportions", field="split_lists")
        if self.proportions is not None and not _valid(self.proportions):
            raise UsageError(
                "must be three numbers, none negative and the first above 0, that sum to 1",
                field="proportions",
            )

    def read(self, source: Path) -> Listing:
        tree = open_tree(source)
        placed = _by_split_and_class(tree, source)
        if self.split_lists is None and self.proportions is None:
            origin, classes = "class folders, split by folder", _by_folder(source, placed)
        else:
            found = _merged(placed)
            if self.split_lists is not None:
                origin, lists = "class folders, split by lists", _read_lists(self.split_lists, found)
            else:
                assert self.proportions is not None
                origin = f"class folders, split by proportions with seed {self.seed}"
                lists = _random_split(list(found), self.proportions, self.seed)
            classes = [SourceClass(name, split, found[name]) for split in SPLITS for name in lists[split]]
        refuse_miscounted(source, classes, at_least(self.min_images))
        if not any(c.split == "train" for c in classes):
            raise UsageError(f"{source}: no class is in the training split")
        return Listing(origin, classes)


Placed = Mapping[tuple[Split | None, str], list[SourceImage]]


def _by_split_and_class(tree: Tree, source: Path) -> Placed:
    """Return the images of every class folder by split folder (None if there is none) and class."""
    paths = [PurePosixPath(n) for n in tree.names]
    images = [p for p in paths if p.suffix.lower() in IMAGE_SUFFIXES | UNREADABLE_SUFFIXES]
    top = _common_depth(images)
    placed: dict[tuple[Split | None, str], list[SourceImage]] = defaultdict(list)
    stray = []
    with_images = {p.parent for p in images}
    class_folders = any(p.parts[top].lower() not in SPLIT_FOLDERS for p in images if len(p.parts) > top + 1)
    # Other files are ignored outside class folders, but inside one they may be damaged images.
    for path in (p for p in paths if p.parent in with_images):
        folders = path.parent.parts[top:]
        split = SPLIT_FOLDERS.get(folders[0].lower()) if folders else None
        if len(folders) == 1 and class_folders:  # a class that is called train, beside others
            split = None
        name = "/".join(folders if split is None else folders[1:])
        if name:
            placed[split, name].append(in_tree(tree, str(path)))
        elif path.suffix.lower() in IMAGE_SUFFIXES:
            stray.append(f"{tree.label(str(path))}: an image outside of any class folder")
    if stray:
        raise ImportRefused(source, stray)
    if not placed:
        raise UsageError(f"{source}: contains no folders of images ({', '.join(sorted(IMAGE_SUFFIXES))})")
    return placed


def _common_depth(images: Sequence[PurePosixPath]) -> int:
    """Count the folders around everything: archives often contain one folder with the data set in it."""
    depth = 0
    while images and all(len(p.parts) > depth + 2 for p in images):
        outer = {p.parts[depth] for p in images}
        if len(outer) > 1 or outer.pop().lower() in SPLIT_FOLDERS:
            break
        depth += 1
    return depth


def _by_folder(source: Path, placed: Placed) -> list[SourceClass]:
    splits: dict[str, list[Split]] = defaultdict(list)
    for split, name in placed:
        if split is None:
            raise UsageError(
                f"{source}: class {name} is not in a folder train, val or test; give the proportions of a "
                "random split, such as 0.64,0.16,0.20, or lists of classes, or sort the classes into such "
                "folders",
                field="proportions",
            )
        splits[name].append(split)
    repeated = [f"class {n}: in {' and in '.join(s)}" for n, s in splits.items() if len(s) > 1]
    if repeated:
        if len(repeated) == len(splits):
            raise UsageError(
                f"{source}: train and test hold the same {len(splits)} classes, a split of images; "
                "meta-training needs other classes for testing: give proportions, and every class goes to "
                "one split with all of its images"
            )
        raise ImportRefused(source, repeated)
    order = sorted(
        ((s, n) for s, n in placed if s is not None), key=lambda key: (SPLITS.index(key[0]), key[1])
    )
    return [SourceClass(name, split, placed[split, name]) for split, name in order]


def _merged(placed: Placed) -> dict[str, list[SourceImage]]:
    found: dict[str, list[SourceImage]] = defaultdict(list)
    for (_, name), images in sorted(placed.items(), key=lambda item: (item[0][1], str(item[0][0]))):
        found[name] += images
    return found


def _read_lists(folder: Path, found: Mapping[str, object]) -> dict[Split, list[str]]:
    lists: dict[Split, list[str]] = {}
    problems, seen = [], dict[str, Path]()
    for split in SPLITS:
        path = folder / f"{split}.txt"
        try:
            lines = read_file(path).decode().splitlines() if split == "train" or path.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}: cannot be read ({error})") from None
        lists[split] = [line.strip() for line in lines if line.strip()]
        for name in lists[split]:
            if name not in found:
                problems.append(f"class {name}: listed in {path} but there is no such folder")
            if name in seen:
                problems.append(f"class {name}: listed in {path} and in {seen[name]}")
            seen[name] = path
    if problems:
        raise ImportRefused(folder, problems)
    return lists


def _valid(proportions: Sequence[float]) -> bool:
    return (
        len(proportions) == 3
        and proportions[0] > 0
        and min(proportions) >= 0
        and abs(sum(proportions) - 1) < 1e-6
    )


def _random_split(names: list[str], proportions: Sequence[float], seed: int) -> dict[Split, list[str]]:
    order = torch.randperm(len(names), generator=generator(seed, "class split")).tolist()
    # Cutting at rounded cumulative sums assigns every class to exactly one split.
    ends = [round(len(names) * sum(proportions[: i + 1])) for i in range(3)]
    cuts = zip(SPLITS, [0, *ends[:2]], ends, strict=True)
    return {split: sorted(names[i] for i in order[first:end]) for split, first, end in cuts}
