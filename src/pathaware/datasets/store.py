"""A packed data set: one file of raw pixels, one of names and numbers. Nothing in it is ever executed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pathaware.datasets.manifest import SPLITS, Manifest
from pathaware.errors import UsageError

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
