"""Images of noise, in memory: a network takes as long over them as over photographs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch

from pathaware.datasets.manifest import ClassSpan, Manifest
from pathaware.datasets.store import ImageStore
from pathaware.seeding import generator
from pathaware.training.classification import Classification

CLASSES, IMAGES = 16, 100


@dataclass(frozen=True)
class SyntheticImages(Classification):
    """Few-shot classification in every respect but one: there is nothing to be learned from the pixels."""

    name: ClassVar[str] = "synthetic"

    size: int = 84
    channels: int = 3

    def _store(self) -> ImageStore:
        return noise(self.size, self.channels)


@lru_cache(maxsize=4)
def noise(size: int, channels: int) -> ImageStore:
    """Random pixels; colour images may be mirrored, as photographs may, and grey ones not, as characters."""
    shape = (channels, size, size)
    spans = (ClassSpan(f"class {i}", "train", i * IMAGES, IMAGES) for i in range(CLASSES))
    manifest = Manifest(
        name="noise",
        shape=shape,
        classes=tuple(spans),
        mean=(0.5,) * channels,
        std=(0.29,) * channels,
        mirror=channels > 1,
        sha256="",
        source="random pixels",
    )
    draws = generator(0, "noise", size, channels)
    pixels = torch.randint(256, (CLASSES * IMAGES, *shape), dtype=torch.uint8, generator=draws)
    return ImageStore(manifest, pixels)
