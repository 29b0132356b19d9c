"""Pictures in folders: those with labels, a folder for each class, and those that want one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.data.importers.folder import IMAGE_SUFFIXES, in_tree
from pathaware.data.importers.source import SourceImage
from pathaware.data.importers.trees import open_tree
from pathaware.data.pixels import BadImage, ImageInput
from pathaware.inference.change_ways import MOST_CLASSES


class SupportRefused(UsageError):
    """A support folder that cannot be learned from; `problems` names every file at fault."""

    def __init__(self, source: Path, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"--support: {source}: {problems[0]}{more}")


@dataclass(frozen=True)
class Support:
    """Labelled pictures: `pixels [S, C, size, size]`, `labels [S]` as places in `classes`."""

    classes: tuple[str, ...]
    pixels: Tensor
    labels: Tensor


def read_support(source: Path, form: ImageInput) -> Support:
    """Classes and their pictures from a folder (or zip or tar) with one folder for each class.

    Every picture has to be usable: a class learned from half of its pictures would go unnoticed.
    """
    found: dict[str, list[SourceImage]] = defaultdict(list)
    problems = []
    pictures = _pictures(source, "--support")
    top = _wrapping([name for name, _ in pictures]) if source.is_file() else 0
    for name, image in pictures:
        if len(name.parts) < top + 2:
            problems.append(f"{image.label} lies in no class folder")
        found[name.parts[top]].append(image)
    if not problems and not 2 <= len(found) <= MOST_CLASSES:
        raise UsageError(
            f"{source} has {len(found)} folders with pictures; 2 to {MOST_CLASSES} can be learned",
            field="support",
        )
    pixels, labels = [], []
    for label, images in enumerate(found.values()):
        for image in images:
            try:
                pixels.append(form.pixels(_content(image)))
                labels.append(label)
            except BadImage as error:
                problems.append(f"{image.label}: {error}")
    if problems:
        raise SupportRefused(source, problems)
    return Support(tuple(found), torch.from_numpy(np.stack(pixels)), torch.tensor(labels))


def _wrapping(names: Sequence[PurePosixPath]) -> int:
    """How many folders wrap all classes: an archive of a folder mostly holds the folder itself."""
    outer = {name.parts[0] for name in names}
    return 1 if len(outer) == 1 and all(len(name.parts) > 2 for name in names) else 0


def read_pictures(source: Path, form: ImageInput) -> tuple[list[str], Tensor, list[str]]:
    """Names and pixels `[N, C, size, size]` of the pictures in a file, folder, zip or tar; and the problems
    of those that cannot be read, which are left out."""
    names, pixels, problems = [], [], []
    for _, image in _pictures(source, "--images"):
        try:
            pixels.append(form.pixels(_content(image)))
            names.append(image.label)
        except BadImage as error:
            problems.append(f"{image.label}: {error}")
    stacked = np.stack(pixels) if pixels else np.zeros((0, *form.shape), np.uint8)
    return names, torch.from_numpy(stacked), problems


def _pictures(source: Path, option: str) -> list[tuple[PurePosixPath, SourceImage]]:
    """All there are, sorted by name; files of other kinds are passed over."""
    if source.is_file() and source.suffix.lower() in IMAGE_SUFFIXES:
        return [(PurePosixPath(source.name), SourceImage(str(source), source.read_bytes))]
    try:
        tree = open_tree(source)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from None
    paths = [PurePosixPath(name) for name in tree.names]
    found = [(p, in_tree(tree, str(p))) for p in paths if p.suffix.lower() in IMAGE_SUFFIXES]
    if not found:
        raise UsageError(f"{option}: {source} has no pictures ({', '.join(sorted(IMAGE_SUFFIXES))})")
    return found


def _content(image: SourceImage) -> bytes:
    try:
        content = image.read()
    except (OSError, UsageError) as error:
        raise BadImage(f"cannot be read ({error})") from None
    assert isinstance(content, bytes)  # archives and folders hold files
    return content
