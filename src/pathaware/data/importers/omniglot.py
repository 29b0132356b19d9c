"""Omniglot as its two zip files or as the folders in them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from pathaware.core.errors import UsageError
from pathaware.data.importers.folder import in_tree
from pathaware.data.importers.source import Listing, SourceClass, SourceImage, by_lists, class_lists, exactly
from pathaware.data.importers.trees import Tree, ZipTree, open_tree
from pathaware.data.pixels import INK_28, ImageFormat

# The distribution also has smaller samples and pen strokes; these two are the data set.
_PARTS = ("images_background", "images_evaluation")


@dataclass(frozen=True)
class Omniglot:
    """Imports 1,623 characters with 20 drawings each: 1,028 for training, 172 validation, 423 test."""

    images_per_class: int = 20
    rotations: bool = False
    """Make characters rotated by 90°, 180° and 270° further classes, in the split of the character."""
    format: ImageFormat = INK_28

    def read(self, source: Path) -> Listing:
        found: dict[str, list[SourceImage]] = defaultdict(list)
        for tree in _parts(source):
            for name in tree.names:
                *_, part, alphabet, character, _ = ("", "", "", *PurePosixPath(name).parts)
                if part in _PARTS:
                    found[f"{alphabet}/{character}"].append(in_tree(tree, name))
        if not found:
            raise UsageError(
                f"{source}: no Omniglot found; it must contain {' and '.join(_PARTS)}, as folders or .zip"
            )
        classes = by_lists(source, found, class_lists("omniglot"), exactly(self.images_per_class))
        if self.rotations:
            classes = [rotated for c in classes for rotated in _rotations(c)]
        return Listing("images_background and images_evaluation", classes)


def _parts(source: Path) -> list[Tree]:
    """Open the source, and each zip file in it whose content is not also there as a folder."""
    tree = open_tree(source)
    folders = {part for name in tree.names for part in PurePosixPath(name).parent.parts}
    zips = [n for n in tree.names if n.endswith(".zip") and PurePosixPath(n).stem in _PARTS]
    archives = (
        [ZipTree(source / n) for n in zips if PurePosixPath(n).stem not in folders] if source.is_dir() else []
    )
    return [tree, *archives]


def _rotations(source: SourceClass) -> list[SourceClass]:
    return [replace(source, name=f"{source.name}/rot{90 * t:03d}", quarter_turns=t) for t in range(4)]
