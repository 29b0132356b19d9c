"""Read a support set (one folder per class) or unlabelled images from a folder, zip or tar.

`copy_by_label` copies images that got a label into one folder per class.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.core.reading import read_file
from pathaware.core.writing import draft_folder, make_folder, move, new_copy, remove_folder
from pathaware.data.importers.folder import IMAGE_SUFFIXES, SPLIT_FOLDERS, in_tree
from pathaware.data.importers.source import SourceImage
from pathaware.data.importers.trees import MAX_FILE, open_tree
from pathaware.data.pixels import UNREADABLE_SUFFIXES, BadImage, ImageInput
from pathaware.data.store import Split, counted
from pathaware.inference.change_ways import MAX_CLASSES
from pathaware.inference.trained_model import SupportSet
from pathaware.training.progress import with_progress

MANY = 20
"""Images that take long enough to read to show progress."""
Named = TypeVar("Named")
FoundImage: TypeAlias = tuple[PurePosixPath, SourceImage]
"""An image and its path within the folder or archive."""


class SupportRefused(UsageError):
    """Raised for an unusable support folder; `problems` names every file at fault."""

    def __init__(self, source: Path, problems: Sequence[str], field: str = "support") -> None:
        self.problems = tuple(problems)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{source}: {problems[0]}{more}", field=field)


def read_support(source: Path, image_input: ImageInput) -> SupportSet:
    """Read a support set from a folder, zip or tar with one folder per class.

    Every image must be usable: a class learned from half of its images would go unnoticed.
    """
    return read_labelled(source, image_input).support


@dataclass(frozen=True)
class LabelledFolder:
    """A support set with the `names` of its images, and for each the split folder it lies in, or none.

    There are `splits` only if the folders train, val and test hold the same classes, as data sets for
    ordinary classification do. `nested` are the classes with images in folders within their own, and `empty`
    the folders that could be classes but have no images.
    """

    support: SupportSet
    names: tuple[str, ...]
    splits: tuple[str, ...] | None = None
    nested: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """Lines about files that were left out."""


def read_labelled(
    source: Path,
    image_input: ImageInput,
    *,
    merge_splits: bool = False,
    skip: bool = False,
    field: str = "support",
) -> LabelledFolder:
    """Read labelled images; with `merge_splits`, train/CLASS and test/CLASS are one class.

    Every image must be usable: a class learned from half of its images would go unnoticed. With `skip`, files
    that are not are left out and named in `problems`.
    """
    by_class: dict[str, list[SourceImage]] = defaultdict(list)
    problems = []
    images = _find_images(source, field)
    top = _common_depth([name for name, _ in images]) if source.is_file() else 0
    outer = {name.parts[top] for name, _ in images if len(name.parts) > top + 1}
    by_split = split_folders(outer) if all(len(n.parts) > top + 2 for n, _ in images) else {}
    if by_split and not merge_splits:
        raise UsageError(
            f"{source} holds the folders {' and '.join(sorted(by_split))}, not classes; name one of them, or "
            "learn from all of them with `pathaware learn`",
            field=field,
        )
    splits: dict[str, str] = {}
    inner = top + 1 if by_split else top
    if len(images) > 1 and all(len(name.parts) == 1 for name, _ in images):
        raise UsageError(
            f"{source} has pictures but no class folders; put the pictures of each class into a folder that "
            "has its name",
            field=field,
        )
    for name, image in images:
        if len(name.parts) < inner + 2:
            problems.append(f"{image.label} lies in no class folder")
            if skip:
                continue
        by_class[name.parts[min(inner, len(name.parts) - 1)]].append(image)
        if by_split:
            splits[image.label] = by_split[name.parts[top]]
    nested = defaultdict[str, set[str]](set)
    for name, _ in images:
        if len(name.parts) > inner + 2:
            nested[name.parts[inner]].add(name.parts[inner + 1])
    if (skip or not problems) and not 2 <= len(by_class) <= MAX_CLASSES:
        message = (
            f"{source} has {counted(len(by_class), 'folder')} with pictures; 2 to {MAX_CLASSES} can be "
            "learned"
        )
        if len(by_class) == 1 and len(nested.get(only := next(iter(by_class)), ())) > 1:
            message += f"; if the folders in {only} are the classes, name {source / only}"
        raise UsageError(message, field=field)
    pixels, labels, names = [], [], []
    found = [(label, image) for label, members in by_class.items() for image in members]
    for label, image, own in _decoded(found, image_input, problems):
        pixels.append(own)
        labels.append(label)
        names.append(image.label)
    classes = tuple(label for label in by_class if label in set(labels))
    if problems and (not skip or len(classes) < 2):
        raise SupportRefused(source, problems, field)
    stacked = torch.from_numpy(np.stack(pixels))
    indices = torch.tensor([classes.index(label) for label in labels])
    support = SupportSet(classes, stacked, indices, names=tuple(names))
    chosen = tuple(splits[n] for n in names) if by_split else None
    empty = set() if by_split else _folders(source) - set(classes)
    inside = tuple(name for name in nested if name in classes)
    return LabelledFolder(support, tuple(names), chosen, inside, tuple(sorted(empty)), tuple(problems))


def _folders(source: Path) -> set[str]:
    """The names of the folders in a folder, without hidden ones; an archive lists files only."""
    if not source.is_dir():
        return set()
    return {path.name for path in source.iterdir() if path.is_dir() and not path.name.startswith(".")}


def has_class_folders(source: Path) -> bool:
    """Return True for a folder that holds two or more folders of images."""
    if not source.is_dir():
        return False
    folders = (path for path in source.iterdir() if path.is_dir())
    return sum(any(p.suffix.lower() in IMAGE_SUFFIXES for p in path.iterdir()) for path in folders) > 1


def split_folders(names: Collection[str]) -> dict[str, Split]:
    """The split that each folder is, if all of them are named after splits; else none."""
    known = {name: SPLIT_FOLDERS[name.lower()] for name in names if name.lower() in SPLIT_FOLDERS}
    return known if len(known) == len(names) > 1 else {}


def read_images(source: Path, image_input: ImageInput) -> tuple[list[FoundImage], Tensor, list[str]]:
    """Read the images of a file, folder, zip or tar.

    Returns the images, their pixels `[N, C, size, size]`, and the problems of unreadable ones, which are left
    out.
    """
    found, pixels = [], []
    problems: list[str] = []
    for path, image, own in _decoded(_find_images(source, "images"), image_input, problems):
        found.append((path, image))
        pixels.append(own)
    stacked = np.stack(pixels) if pixels else np.zeros((0, *image_input.shape), np.uint8)
    return found, torch.from_numpy(stacked), problems


def _decoded(
    images: Sequence[tuple[Named, SourceImage]], form: ImageInput, problems: list[str]
) -> Iterator[tuple[Named, SourceImage, NDArray[np.uint8]]]:
    """The images with their pixels; `problems` receives lines about those that cannot be used.

    Progress is shown on a terminal: a photograph of a phone takes a quarter of a second to decode.
    """
    doing = f"reading {counted(len(images), 'picture')}"
    for name, image in with_progress(images, len(images), doing, least=MANY):
        try:
            yield name, image, form.pixels(_content(image))
        except BadImage as error:
            problems.append(error.named(image.label))
        except UsageError as error:  # names the file or member already
            problems.append(error.message)


def copy_by_label(images: Sequence[FoundImage], labels: Sequence[str], folder: Path) -> list[Path]:
    """Copy each image into the folder of its label within `folder`, which is new or empty; return the copies.

    An image whose name is taken gets a number, as in `one-2.png`. Copies appear when all are complete.
    """
    names = [folder_name(label, "sort") for label in dict.fromkeys(labels)]
    inside = folder.is_dir()  # it may be the current folder or a mounted disk, which cannot be replaced
    copies: list[Path] = []
    moved: list[Path] = []
    copying = with_progress(images, len(images), f"copying {counted(len(images), 'picture')}", least=MANY)
    try:
        with draft_folder(folder if inside else folder.parent) as draft:
            for name in names:
                make_folder(draft / name, new=True)  # unless a disk takes two names for the same
            for label, (path, image) in zip(labels, copying, strict=True):
                name = free_name(draft, f"{label}/{path.name}")
                new_copy(draft / name, _content(image), image.file)
                copies.append(folder / name)
            for name in names if inside else ():
                move(draft / name, folder / name, folder)
                moved.append(folder / name)
            if not inside:
                move(draft, folder, folder.parent)
    except BaseException as error:  # Ctrl-C included
        for unfinished in moved:
            remove_folder(unfinished)
        if isinstance(error, OSError):
            raise UsageError(f"{folder} cannot be written ({error.strerror or error})", "sort") from None
        raise
    return copies


def free_name(folder: Path, name: str) -> str:
    """The name, or one with a number if the folder has such a file."""
    path, number = PurePosixPath(name), 1
    while (folder / name).exists():
        number += 1
        name = str(path.with_stem(f"{path.stem}-{number}"))
    return name


def folder_name(label: str, field: str = "label") -> str:
    """Return a label that can be the name of a folder, or raise an error about `field`."""
    parts = any(c in "/\\\0" for c in label) or Path(label).name != label  # of a path, or with a drive
    if not label or label.startswith(".") or parts or len(label.encode()) > 255:
        raise UsageError(
            f"{label[:40]!r} cannot be the name of a folder: it must not be empty, begin with a dot or "
            "contain / or \\",
            field=field,
        )
    return label


def _find_images(source: Path, field: str) -> list[FoundImage]:
    """Return all images sorted by name, ignoring other files; `field` is the argument named in errors."""
    # Photographs that cannot be read are found as well, to be named.
    suffixes = IMAGE_SUFFIXES | UNREADABLE_SUFFIXES
    if source.is_file() and source.suffix.lower() in suffixes:
        one = SourceImage(str(source), functools.partial(read_file, source, MAX_FILE), source)
        return [(PurePosixPath(source.name), one)]
    try:
        tree = open_tree(source, "an image, " if field == "images" else "")
    except UsageError as error:
        raise UsageError(str(error), field=field) from None
    paths = [PurePosixPath(name) for name in tree.names]
    images = [(p, in_tree(tree, str(p))) for p in paths if p.suffix.lower() in suffixes]
    if not images:
        raise UsageError(f"{source} has no pictures ({', '.join(sorted(IMAGE_SUFFIXES))})", field=field)
    return images


def _common_depth(names: Sequence[PurePosixPath]) -> int:
    """Return 1 if one folder contains all class folders, as in most archives of a folder, else 0."""
    outer = {name.parts[0] for name in names}
    return 1 if len(outer) == 1 and all(len(name.parts) > 2 for name in names) else 0


def _content(image: SourceImage) -> bytes:
    try:
        content = image.read()
    except OSError as error:
        raise BadImage(f"cannot be read ({error})") from None
    assert isinstance(content, bytes)  # folders and archives contain files
    return content
