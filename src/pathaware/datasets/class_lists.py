"""The published class lists that come with the package."""

from __future__ import annotations

from importlib.resources import files

from pathaware.datasets.manifest import SPLITS, Split


def class_lists(name: str) -> dict[Split, list[str]]:
    """The classes of each split; a list may have further columns, which are not part of the name."""
    folder = files("pathaware.datasets") / "splits" / name
    lists: dict[Split, list[str]] = {}
    for split in SPLITS:
        plain = folder / f"{split}.txt"
        table = plain if plain.is_file() else folder / f"{split}.csv"
        lists[split] = [line.split(",")[0] for line in table.read_text("utf-8").split("\n") if line]
    return lists
