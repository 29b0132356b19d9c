"""A packed data set: raw pixels in `images.u8`, names and statistics in `store.json`. Nothing is executed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.core.reading import read_file
from pathaware.core.schema import read_table

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
FORMAT = 1
PIXELS = "images.u8"
MANIFEST = "store.json"


@dataclass(frozen=True)
class ClassSpan:
    """A class, whose images are `start … start + count - 1` of the store."""

    name: str
    split: Split
    start: int
    count: int


@dataclass(frozen=True)
class Manifest:
    """The description of a store. `mean` and `std` are per channel, of pixels scaled to 0…1."""

    name: str
    shape: tuple[int, int, int]
    classes: tuple[ClassSpan, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    mirror: bool
    """True if a mirrored image still shows its class, as for photographs but not for characters."""
    sha256: str
    source: str
    ink: bool = False
    """True if images are bright ink on black, so that an image of dark ink on paper must be inverted."""
    format: int = FORMAT

    @property
    def images(self) -> int:
        return sum(c.count for c in self.classes)

    @property
    def bytes(self) -> int:
        return self.images * math.prod(self.shape)

    def to_json(self) -> str:
        """Format as JSON with one line per class, so that large sets stay readable and `diff` works."""
        head = {
            "format": self.format,
            **{k: v for k, v in asdict(self).items() if k not in ("format", "classes")},
        }
        lines = [f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}," for k, v in head.items()]
        rows = [f"    {json.dumps(asdict(c), ensure_ascii=False)}" for c in self.classes]
        return "\n".join(["{", *lines, '  "classes": [', ",\n".join(rows), "  ]", "}"]) + "\n"

    @staticmethod
    def read(path: Path) -> Manifest:
        """Read and validate `store.json`."""
        try:
            document = json.loads(read_file(path))
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{path}: not a readable store description ({error})") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise UsageError(f"{path}: not a store of format {FORMAT}; import the data set again")
        try:
            # Older stores lack `ink`; infer it for glyphs and Omniglot.
            return _checked({"ink": document.get("name") in ("glyphs", "omniglot"), **document})
        except UsageError as error:
            raise UsageError(
                f"{path}: damaged store description ({error.message}); import the data set again"
            ) from None


def _checked(document: Mapping[str, Any]) -> Manifest:
    manifest = read_table("store", document, Manifest, known_only=False)
    # The sampler indexes raw memory with these spans, so an edited file must not pass unchecked.
    expected = 0
    for span in manifest.classes:
        if span.start != expected or span.count < 1:
            raise UsageError(f"class {span.name}: start and count do not fit")
        expected += span.count
    if not manifest.classes or len({c.name for c in manifest.classes}) != len(manifest.classes):
        raise UsageError("classes: must be one or more, with names that differ")
    if len(manifest.shape) != 3 or min(manifest.shape) < 1:
        raise UsageError("shape: must be three numbers above 0")
    if not len(manifest.mean) == len(manifest.std) == manifest.shape[0] or min(manifest.std) <= 0:
        raise UsageError("mean and std: must be a number per channel, std above 0")
    return manifest


def counted(count: int, noun: str) -> str:
    """A number of things in words.

    >>> counted(1, "image"), counted(2_000, "image"), counted(0, "class"), counted(1, "test task")
    ('1 image', '2,000 images', '0 classes', '1 test task')
    """
    plural = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{plural}"


@dataclass(frozen=True)
class SplitClasses:
    """The classes of one split: names, index of the first image, number of images."""

    names: tuple[str, ...]
    starts: Tensor
    counts: Tensor

    def __len__(self) -> int:
        return len(self.names)

    @property
    def members(self) -> Tensor:
        """Indices of all images, class by class."""
        before = self.counts.cumsum(0) - self.counts
        return (self.starts - before).repeat_interleave(self.counts) + torch.arange(int(self.counts.sum()))

    @property
    def labels(self) -> Tensor:
        """The class of each of the `members`."""
        return torch.arange(len(self)).repeat_interleave(self.counts)

    def of_each(self, images: Tensor) -> list[Tensor]:
        """The images of each class, of all images of the store."""
        spans = zip(self.starts.tolist(), self.counts.tolist(), strict=True)
        return [images[start : start + count] for start, count in spans]


class ImageStore:
    """Images `[N, C, H, W]` in uint8, grouped by class.

    `ImageStore.open(folder)` maps the file into memory: opening takes no time whatever the size, and
    processes that open the same store share its pages. A store built in memory has no folder.
    """

    def __init__(self, manifest: Manifest, images: Tensor, folder: Path | None = None) -> None:
        self.manifest = manifest
        self.images = images
        self.folder = folder
        self._copies: dict[torch.device, Tensor] = {}

    @staticmethod
    def open(folder: Path) -> ImageStore:
        """Map the store in a folder into memory, after checking its size."""
        manifest = Manifest.read(folder / MANIFEST)
        pixels = folder / PIXELS
        size = pixels.stat().st_size if pixels.is_file() else 0
        if size != manifest.bytes:
            raise UsageError(
                f"{pixels}: {size:,} bytes, {manifest.bytes:,} expected; import the data set again"
            )
        # A private mapping: a write would affect this process only, never the file.
        flat = torch.from_file(str(pixels), shared=False, size=size, dtype=torch.uint8)
        return ImageStore(manifest, flat.view(manifest.images, *manifest.shape), folder)

    @property
    def name(self) -> str:
        """The name of the data set."""
        return self.manifest.name

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        return self.manifest.shape

    def __len__(self) -> int:
        return self.manifest.images

    def __repr__(self) -> str:
        where = "in memory" if self.folder is None else str(self.folder)
        return f"ImageStore({self.name!r}, {len(self):,} images {self.shape}, {where})"

    def split(self, split: str) -> SplitClasses:
        """Return the classes of "train", "val" or "test"; a missing split is empty."""
        if split not in SPLITS:
            raise UsageError(f"split {split!r}: must be one of {', '.join(SPLITS)}")
        spans = [c for c in self.manifest.classes if c.split == split]
        return SplitClasses(
            names=tuple(c.name for c in spans),
            starts=torch.tensor([c.start for c in spans], dtype=torch.int64),
            counts=torch.tensor([c.count for c in spans], dtype=torch.int64),
        )

    def tensor(self, device: torch.device | str = "cpu") -> Tensor:
        """Return all images on a device: the mapping itself on the CPU, elsewhere one cached copy."""
        device = _indexed(device)
        if device.type == "cpu":
            return self.images
        if device not in self._copies:
            self._copies[device] = self.images.to(device)
        return self._copies[device]

    def holds(self, device: torch.device | str) -> bool:
        """Return True if the device already has a copy."""
        return _indexed(device) in self._copies

    def verify(self) -> None:
        """Compare all pixels with the checksum taken when the store was written."""
        found = checksum(self.images)
        if found != self.manifest.sha256:
            where = self.name if self.folder is None else str(self.folder / PIXELS)
            raise UsageError(f"{where}: pixels do not match their checksum; import the data set again")


def _indexed(device: torch.device | str) -> torch.device:
    """Resolve "cuda" to "cuda:0" (or the current device), so that one GPU never holds two copies."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def checksum(images: Tensor) -> str:
    """Return the SHA-256 of the pixels."""
    return hashlib.sha256(images.contiguous().view(-1).numpy().data).hexdigest()
