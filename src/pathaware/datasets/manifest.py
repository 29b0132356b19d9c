"""What `store.json` says: the names, places and statistics of a packed data set."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pathaware.errors import UsageError

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
FORMAT = 1


@dataclass(frozen=True)
class ClassSpan:
    """One class: its images are `start … start + count - 1` of the store."""

    name: str
    split: Split
    start: int
    count: int


@dataclass(frozen=True)
class Manifest:
    """Everything about a store but its pixels. `mean` and `std` are per channel, of pixels in 0…1."""

    name: str
    shape: tuple[int, int, int]
    classes: tuple[ClassSpan, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mirror: bool
    """Whether a mirrored image still shows its class: true of photographs, false of characters."""
    sha256: str
    source: str
    ink: bool = False
    """Whether images are bright ink on black, so that a picture of ink on paper has to be inverted."""
    format: int = FORMAT

    @property
    def images(self) -> int:
        return sum(c.count for c in self.classes)

    @property
    def bytes(self) -> int:
        return self.images * math.prod(self.shape)

    def to_json(self) -> str:
        """One line per class: large sets stay readable, and two manifests can be compared by `diff`."""
        head = {
            "format": self.format,
            **{k: v for k, v in asdict(self).items() if k not in ("format", "classes")},
        }
        lines = [f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}," for k, v in head.items()]
        rows = [f"    {json.dumps(asdict(c), ensure_ascii=False)}" for c in self.classes]
        return "\n".join(["{", *lines, '  "classes": [', ",\n".join(rows), "  ]", "}"]) + "\n"

    @staticmethod
    def read(path: Path) -> Manifest:
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: not a readable store description ({error})") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise UsageError(f"{path}: not a store of format {FORMAT}; import the data set again")
        try:
            return _checked(document)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(
                f"{path}: damaged store description ({error!r}); import the data set again"
            ) from None


def _checked(document: Mapping[str, Any]) -> Manifest:
    classes = tuple(
        ClassSpan(str(c["name"]), c["split"], c["start"], c["count"]) for c in document["classes"]
    )
    channels, height, width = document["shape"]
    manifest = Manifest(
        name=str(document["name"]),
        shape=(int(channels), int(height), int(width)),
        classes=classes,
        mean=tuple(float(m) for m in document["mean"]),
        std=tuple(float(s) for s in document["std"]),
        mirror=bool(document["mirror"]),
        sha256=str(document["sha256"]),
        source=str(document["source"]),
        # Stores of before this was asked do not say; these two are.
        ink=bool(document.get("ink", document["name"] in ("glyphs", "omniglot"))),
    )
    # The sampler trusts these spans to index raw memory, so a hand-edited file must not get past here.
    expected = 0
    for span in classes:
        if span.split not in SPLITS or span.start != expected or span.count < 1:
            raise ValueError(f"class {span.name}")
        expected += span.count
    if not classes or len({c.name for c in classes}) != len(classes):
        raise ValueError("classes")
    if min(manifest.shape) < 1 or not len(manifest.mean) == len(manifest.std) == channels:
        raise ValueError("shape")
    if not all(map(math.isfinite, manifest.mean)) or not all(
        s > 0 and math.isfinite(s) for s in manifest.std
    ):
        raise ValueError("mean and std")
    return manifest
