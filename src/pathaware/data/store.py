"""What `store.json` says: the names, places and statistics of a packed data set."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from pathaware.core.errors import UsageError
import hashlib
from dataclasses import dataclass
import torch
from torch import Tensor


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


# A packed data set: one file of raw pixels, one of names and numbers. Nothing in it is ever executed.


PIXELS = "images.u8"
MANIFEST = "store.json"


@dataclass(frozen=True)
class SplitClasses:
    """The classes of one split: names, and where the images of each begin and how many there are."""

    names: tuple[str, ...]
    starts: Tensor
    counts: Tensor

    def __len__(self) -> int:
        return len(self.names)


class ImageStore:
    """Images `[N, C, H, W]` in uint8, those of one class side by side.

    `ImageStore.open(folder)` maps the file: opening costs nothing whatever its size, and processes that
    open the same set share its pages. A store built in memory has no folder.
    """

    def __init__(self, manifest: Manifest, images: Tensor, folder: Path | None = None) -> None:
        self.manifest = manifest
        self.images = images
        self.folder = folder
        self._copies: dict[torch.device, Tensor] = {}

    @staticmethod
    def open(folder: Path) -> ImageStore:
        manifest = Manifest.read(folder / MANIFEST)
        pixels = folder / PIXELS
        size = pixels.stat().st_size if pixels.is_file() else 0
        if size != manifest.bytes:
            raise UsageError(
                f"{pixels}: {size:,} bytes, {manifest.bytes:,} expected; import the data set again"
            )
        # A private mapping: a stray write could reach this process only, never the file.
        flat = torch.from_file(str(pixels), shared=False, size=size, dtype=torch.uint8)
        return ImageStore(manifest, flat.view(manifest.images, *manifest.shape), folder)

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.manifest.shape

    def __len__(self) -> int:
        return self.manifest.images

    def __repr__(self) -> str:
        where = "in memory" if self.folder is None else str(self.folder)
        return f"ImageStore({self.name!r}, {len(self):,} images {self.shape}, {where})"

    def split(self, split: str) -> SplitClasses:
        """The classes of "train", "val" or "test"; a split the set does not have is empty."""
        if split not in SPLITS:
            raise UsageError(f"split {split!r}: must be one of {', '.join(SPLITS)}")
        spans = [c for c in self.manifest.classes if c.split == split]
        return SplitClasses(
            names=tuple(c.name for c in spans),
            starts=torch.tensor([c.start for c in spans], dtype=torch.int64),
            counts=torch.tensor([c.count for c in spans], dtype=torch.int64),
        )

    def tensor(self, device: torch.device | str = "cpu") -> Tensor:
        """All images on a device. On the CPU this is the mapping itself; elsewhere one copy serves all."""
        device = _indexed(device)
        if device.type == "cpu":
            return self.images
        if device not in self._copies:
            self._copies[device] = self.images.to(device)
        return self._copies[device]

    def holds(self, device: torch.device | str) -> bool:
        """Whether a copy is already on that device."""
        return _indexed(device) in self._copies

    def verify(self) -> None:
        """Read every byte and compare with the checksum taken when the store was written."""
        found = checksum(self.images)
        if found != self.manifest.sha256:
            where = self.name if self.folder is None else str(self.folder / PIXELS)
            raise UsageError(f"{where}: pixels do not match their checksum; import the data set again")


def _indexed(device: torch.device | str) -> torch.device:
    """ "cuda" and "cuda:0" are one place, and must not hold two copies."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def checksum(images: Tensor) -> str:
    return hashlib.sha256(images.contiguous().view(-1).numpy().data).hexdigest()
