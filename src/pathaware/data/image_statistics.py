"""Simple statistics of images: do they look like those a model was trained on, and are two nearly equal?

`TypicalImages` measures how far an image is from the training images of a model, by six numbers per image:

    mean, standard deviation, share of nearly black or white pixels, entropy of the histogram, mean difference
    of neighbouring pixels, mean saturation

The distance is Mahalanobis's, with mean and covariance of the training images. These statistics tell drawings
from photographs, not one kind of photograph from another.

`difference_hash` is the perceptual hash of 64 bits by which near-duplicates are found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

SAMPLE = 1000
"""Number of training images that statistics are taken of."""

QUANTILE = 0.999
"""Quantile of the distances of training images above which an image counts as unlike them."""

SHARE = 0.2
"""Share of unlike images in a set above which a warning is worth it."""

NEAR = 4
"""Largest number of differing bits of 64 at which two images count as near-duplicates."""


def image_statistics(pixels: Tensor) -> Tensor:
    """The six statistics `[N, 6]` of pixels `[N, C, H, W]` in 0…255."""
    x = pixels.float() / 255
    grey = x.mean(1)
    flat = grey.flatten(1)
    bins = torch.stack([each.histc(16, 0, 1) for each in flat]) / flat.shape[1]
    extreme = bins[:, 0] + bins[:, 15]
    entropy = -(bins * bins.clamp(min=1e-12).log()).sum(1)
    across, down = grey.diff(dim=2).abs().flatten(1).mean(1), grey.diff(dim=1).abs().flatten(1).mean(1)
    saturation = (x.amax(1) - x.amin(1)).flatten(1).mean(1)
    found = torch.stack([flat.mean(1), flat.std(1), extreme, entropy, across + down, saturation], 1)
    return found.double()


@dataclass(frozen=True)
class TypicalImages:
    """Statistics of the training images of a model: `mean [6]`, inverse covariance `[6, 6]`, and the `limit`.

    `limit` is the 99.9 % quantile of the distances of training images.
    """

    mean: tuple[float, ...]
    precision: tuple[tuple[float, ...], ...]
    limit: float
    images: int

    @classmethod
    def of(cls, pixels: Tensor) -> TypicalImages:
        """Measure training images `[N, C, H, W]`; at most `SAMPLE` of them, evenly spread."""
        chosen = torch.linspace(0, len(pixels) - 1, min(len(pixels), SAMPLE)).long()
        found = image_statistics(pixels[chosen])
        mean, covariance = found.mean(0), torch.cov(found.T)
        # Grey images have no saturation at all; a little variance keeps the matrix invertible.
        precision = torch.linalg.inv(covariance + 1e-4 * torch.eye(len(covariance), dtype=found.dtype))
        away = _distances(found, mean, precision)
        limit = away.quantile(QUANTILE).item()
        return cls(tuple(mean.tolist()), tuple(map(tuple, precision.tolist())), limit, len(chosen))

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> TypicalImages:
        """The inverse of `to_dict`."""
        rows = tuple(tuple(map(float, row)) for row in saved["precision"])
        return cls(tuple(map(float, saved["mean"])), rows, float(saved["limit"]), int(saved["images"]))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def distances(self, pixels: Tensor) -> Tensor:
        """Distances of images `[N, C, H, W]` from training images, in units of the limit."""
        mean, precision = (torch.tensor(v, dtype=torch.float64) for v in (self.mean, self.precision))
        return _distances(image_statistics(pixels.cpu()), mean, precision) / self.limit

    def warning(self, pixels: Tensor, what: str = "pictures") -> str | None:
        """One sentence if many of these images look unlike the training images, else None."""
        if not len(pixels):
            return None
        away = self.distances(pixels)
        unlike = int((away > 1).sum())
        if unlike <= SHARE * len(pixels):
            return None
        return (
            f"{unlike} of {len(pixels)} {what} look unlike the images that the model was trained on: by "
            f"brightness, contrast and colour they are {away.median():.1f} times as far away (median) as "
            "99.9 % of those images are; predictions may mean nothing"
        )


def _distances(found: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    centred = found - mean
    return ((centred @ precision) * centred).sum(1).clamp(min=0).sqrt()


def difference_hash(pixels: NDArray[np.uint8]) -> int:
    """64 bits of an image `[C, H, W]`: whether each of 8 × 8 cells is darker than the one to its right."""
    grey = torch.from_numpy(np.ascontiguousarray(pixels)).float().mean(0)[None, None]
    cells = F.interpolate(grey, (8, 9), mode="area")[0, 0]
    bits = (cells[:, 1:] > cells[:, :-1]).flatten().tolist()
    return sum(1 << i for i, bit in enumerate(bits) if bit)


def near_duplicates(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of indices whose hashes differ in at most `NEAR` bits.

    Images without structure, whose hash is nearly empty, are left out: all of them would be duplicates.
    """
    rows = np.array(first, dtype=np.uint64)
    found = []
    for j, value in enumerate(second):
        if not NEAR < value.bit_count() < 64 - NEAR:
            continue
        differing = np.bitwise_count(rows ^ np.uint64(value)) if len(rows) else rows
        found += [(int(i), j) for i in np.flatnonzero(differing <= NEAR)]
    return found
