"""Class folders anywhere in a tree: what most copies of the published sets come down to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import PurePosixPath

from pathaware.datasets.manifest import Split
from pathaware.datasets.sources import SourceImage
from pathaware.datasets.trees import Tree, read


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
