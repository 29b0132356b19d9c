"""What an importer reads: classes of images, loaded one at a time, and what goes wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias
import numpy as np
from numpy.typing import NDArray
from pathaware.data.pixels import ImageFormat
from pathaware.data.store import Split
from pathaware.core.errors import UsageError
from importlib.resources import files
from pathaware.data.store import SPLITS, Split


Pixels: TypeAlias = NDArray[np.uint8]


class ImportRefused(UsageError):
    """A source that cannot be imported; `problems` names every file or class at fault."""

    def __init__(self, source: Path | str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{source}: nothing was imported: {problems[0]}{more}")


@dataclass(frozen=True)
class SourceImage:
    """An image still in its source. `label` names it; `read` gives file bytes or pixels [H, W, 3]."""

    label: str
    read: Callable[[], bytes | Pixels]


@dataclass(frozen=True)
class SourceClass:
    name: str
    split: Split
    images: Sequence[SourceImage]
    quarter_turns: int = 0


@dataclass(frozen=True)
class Listing:
    """Everything there is to import. `origin` says in general terms what it was read from."""

    origin: str
    classes: Sequence[SourceClass]


class Importer(Protocol):
    """One way a data set comes: how to find its classes, and the form its images are stored in."""

    @property
    def format(self) -> ImageFormat: ...

    def read(self, source: Path) -> Listing: ...


Found: TypeAlias = Mapping[str, Sequence[SourceImage]]


def by_lists(
    source: Path, found: Found, lists: Mapping[Split, Iterable[str]], expected: Callable[[int], str | None]
) -> list[SourceClass]:
    """Group the classes found by lists of names, or refuse, naming every class that is missing or short."""
    classes = [
        SourceClass(name, split, found.get(name, ())) for split, names in lists.items() for name in names
    ]
    refuse_miscounted(source, classes, expected)
    return classes


def refuse_miscounted(
    source: Path, classes: Collection[SourceClass], expected: Callable[[int], str | None]
) -> None:
    problems = [
        f"class {c.name}: {len(c.images)} images found, {wanted} expected"
        for c in classes
        if (wanted := expected(len(c.images))) is not None
    ]
    if problems:
        raise ImportRefused(source, problems)


def exactly(count: int) -> Callable[[int], str | None]:
    """What `by_lists` expects of a class with a published size: too many means one image found twice."""
    return lambda found: None if found == count else str(count)


def at_least(count: int) -> Callable[[int], str | None]:
    return lambda found: None if found >= count else f"at least {count}"


# The published class lists that come with the package.


def class_lists(name: str) -> dict[Split, list[str]]:
    """The classes of each split; a list may have further columns, which are not part of the name."""
    folder = files("pathaware.data") / "splits" / name
    lists: dict[Split, list[str]] = {}
    for split in SPLITS:
        plain = folder / f"{split}.txt"
        table = plain if plain.is_file() else folder / f"{split}.csv"
        lists[split] = [line.split(",")[0] for line in table.read_text("utf-8").split("\n") if line]
    return lists
