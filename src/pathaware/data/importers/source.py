"""The importer interface: classes of images to read one at a time, checks of their numbers, class lists."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pathaware.core.errors import UsageError
from pathaware.data.pixels import ImageFormat
from pathaware.data.store import SPLITS, Split, counted

Pixels: TypeAlias = NDArray[np.uint8]


class ImportRefused(UsageError):
    """Raised for a source that cannot be imported; `problems` names every file or class at fault.

    They are `unreadable` images, or the source is not as it should be.
    """

    def __init__(self, source: Path | str, problems: Sequence[str], *, unreadable: bool = False) -> None:
        self.problems = tuple(problems)
        self.unreadable = unreadable
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{source}: nothing was imported: {problems[0]}{more}")


@dataclass(frozen=True)
class SourceImage:
    """An image in its source. `label` names it; `read` returns file bytes or pixels `[H, W, 3]`.

    `file` is its path, unless it is in an archive.
    """

    label: str
    read: Callable[[], bytes | Pixels]
    file: Path | None = None


@dataclass(frozen=True)
class SourceClass:
    name: str
    split: Split
    images: Sequence[SourceImage]
    quarter_turns: int = 0


@dataclass(frozen=True)
class Listing:
    """All classes of a source. `origin` describes the kind of source."""

    origin: str
    classes: Sequence[SourceClass]


class Importer(Protocol):
    """Finds the classes of a data set; `format` is how its images are stored."""

    @property
    def format(self) -> ImageFormat: ...

    def read(self, source: Path) -> Listing: ...


Found: TypeAlias = Mapping[str, Sequence[SourceImage]]


def by_lists(
    source: Path, found: Found, lists: Mapping[Split, Iterable[str]], expected: Callable[[int], str | None]
) -> list[SourceClass]:
    """Assign the classes found to splits; raise if classes are missing or have a wrong number of images."""
    classes = [
        SourceClass(name, split, found.get(name, ())) for split, names in lists.items() for name in names
    ]
    refuse_miscounted(source, classes, expected)
    return classes


def refuse_miscounted(
    source: Path, classes: Collection[SourceClass], expected: Callable[[int], str | None]
) -> None:
    """Raise an error that names every class with a wrong number of images."""
    problems = [
        f"class {c.name}: {counted(len(c.images), 'image')} found, {required} expected"
        for c in classes
        if (required := expected(len(c.images))) is not None
    ]
    if problems:
        raise ImportRefused(source, problems)


def exactly(count: int) -> Callable[[int], str | None]:
    """Require exactly `count` images per class; more would mean that an image was found twice."""
    return lambda found: None if found == count else str(count)


def at_least(count: int) -> Callable[[int], str | None]:
    """Require at least `count` images per class."""
    return lambda found: None if found >= count else f"at least {count}"


def class_lists(name: str) -> dict[Split, list[str]]:
    """Read the published classes of each split; only the first column of a csv file is the name."""
    folder = files("pathaware.data") / "splits" / name
    lists: dict[Split, list[str]] = {}
    for split in SPLITS:
        plain = folder / f"{split}.txt"
        table = plain if plain.is_file() else folder / f"{split}.csv"
        lists[split] = [line.split(",")[0] for line in table.read_text("utf-8").split("\n") if line]
    return lists
