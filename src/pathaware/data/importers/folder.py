"""Class folders anywhere in a tree: what most copies of the published sets come down to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import PurePosixPath
from pathaware.data.store import Split
from pathaware.data.importers.source import SourceImage
from pathaware.data.importers.trees import Tree, read
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
import torch
from pathaware.data.pixels import PHOTO_84, ImageFormat
from pathaware.data.store import SPLITS, Split
from pathaware.data.importers.source import ImportRefused, Listing, SourceClass, SourceImage, at_least, refuse_miscounted
from pathaware.data.importers.trees import Tree, open_tree
from pathaware.core.errors import UsageError
from pathaware.core.seeding import generator


def class_folders(tree: Tree, lists: Mapping[Split, Iterable[str]]) -> dict[str, list[SourceImage]]:
    """The files in every folder called by a wanted name.

    Folders of the same name are merged: CIFAR-100 keeps a class's images in `train/` and `test/`, some
    copies of miniImageNet spread them over three folders, and neither is the split of few-shot learning.
    """
    wanted = {name for names in lists.values() for name in names}
    found: dict[str, list[SourceImage]] = defaultdict(list)
    for name in tree.names:
        folders = PurePosixPath(name).parent.parts
        named = next((f for f in reversed(folders) if f in wanted), None)
        if named is not None:
            found[named].append(in_tree(tree, name))
    return dict(found)


def in_tree(tree: Tree, name: str) -> SourceImage:
    return SourceImage(tree.label(name), partial(read, tree, name))


# Any folder of class folders, split by its sub-folders, by lists, or by a seeded draw.


_SPLIT_FOLDERS: dict[str, Split] = {
    "train": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
}
IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"}


@dataclass(frozen=True)
class Folder:
    """A class is a folder that holds images, named by its path. Give at most one of the two ways to split;
    with neither, the sub-folders `train/`, `val/` and `test/` are the split."""

    format: ImageFormat = PHOTO_84
    split_lists: Path | None = None
    proportions: Sequence[float] | None = None
    seed: int = 0
    min_images: int = 2

    def __post_init__(self) -> None:
        if self.min_images < 1:
            raise UsageError(f"--min-images {self.min_images}: must be at least 1")
        if self.split_lists is not None and self.proportions is not None:
            raise UsageError("--split-lists and --proportions: give one or the other")
        if self.proportions is not None and not _usable(self.proportions):
            raise UsageError(
                "must be three numbers of at least 0 that sum to 1, the first above 0", field="proportions"
            )

    def read(self, source: Path) -> Listing:
        tree = open_tree(source)
        placed = _place(tree, source)
        if self.split_lists is None and self.proportions is None:
            origin, classes = "class folders, split by folder", _by_folder(source, placed)
        else:
            found = _merged(placed)
            if self.split_lists is not None:
                origin, lists = "class folders, split by lists", _read_lists(self.split_lists, found)
            else:
                assert self.proportions is not None
                origin = f"class folders, split by proportions with seed {self.seed}"
                lists = _drawn(list(found), self.proportions, self.seed)
            classes = [SourceClass(name, split, found[name]) for split in SPLITS for name in lists[split]]
        refuse_miscounted(source, classes, at_least(self.min_images))
        if not any(c.split == "train" for c in classes):
            raise UsageError(f"{source}: no class is in the training split")
        return Listing(origin, classes)


Placed = Mapping[tuple[Split | None, str], list[SourceImage]]


def _place(tree: Tree, source: Path) -> Placed:
    """Every class folder, and the split folder it lies in, if any."""
    paths = [PurePosixPath(n) for n in tree.names]
    images = [p for p in paths if p.suffix.lower() in IMAGE_SUFFIXES]
    top = _wrapping(images)
    placed: dict[tuple[Split | None, str], list[SourceImage]] = defaultdict(list)
    stray = []
    with_images = {p.parent for p in images}
    # Other files are passed over beside the class folders, but inside one they may be images gone wrong.
    for path in (p for p in paths if p.parent in with_images):
        folders = path.parent.parts[top:]
        split = _SPLIT_FOLDERS.get(folders[0].lower()) if folders else None
        name = "/".join(folders if split is None else folders[1:])
        if name:
            placed[split, name].append(in_tree(tree, str(path)))
        elif path.suffix.lower() in IMAGE_SUFFIXES:
            stray.append(f"{tree.label(str(path))}: an image that lies in no class folder")
    if stray:
        raise ImportRefused(source, stray)
    if not placed:
        raise UsageError(f"{source}: holds no folders of images ({', '.join(sorted(IMAGE_SUFFIXES))})")
    return placed


def _wrapping(images: Sequence[PurePosixPath]) -> int:
    """How many folders wrap everything: archives often hold a single folder with the data set in it."""
    depth = 0
    while images and all(len(p.parts) > depth + 2 for p in images):
        outer = {p.parts[depth] for p in images}
        if len(outer) > 1 or outer.pop().lower() in _SPLIT_FOLDERS:
            break
        depth += 1
    return depth


def _by_folder(source: Path, placed: Placed) -> list[SourceClass]:
    splits: dict[str, list[Split]] = defaultdict(list)
    for split, name in placed:
        if split is None:
            raise UsageError(
                f"{source}: class {name} is in none of the folders train, val and test; "
                "sort the classes into them, or pass --split-lists or --proportions"
            )
        splits[name].append(split)
    repeated = [f"class {n}: in {' and in '.join(s)}" for n, s in splits.items() if len(s) > 1]
    if repeated:
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
            lines = path.read_text(encoding="utf-8").splitlines() if split == "train" or path.exists() else []
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


def _usable(proportions: Sequence[float]) -> bool:
    return (
        len(proportions) == 3
        and proportions[0] > 0
        and min(proportions) >= 0
        and abs(sum(proportions) - 1) < 1e-6
    )


def _drawn(names: list[str], proportions: Sequence[float], seed: int) -> dict[Split, list[str]]:
    order = torch.randperm(len(names), generator=generator(seed, "class split")).tolist()
    # Cutting at rounded running sums gives every class to exactly one split, whatever the rounding.
    ends = [round(len(names) * sum(proportions[: i + 1])) for i in range(3)]
    cuts = zip(SPLITS, [0, *ends[:2]], ends, strict=True)
    return {split: sorted(names[i] for i in order[first:end]) for split, first, end in cuts}
