"""Augmentation of images: random choices, which are made on the CPU, and the operations that follow them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pathaware.core.settings import fractions

ASPECT = (3 / 4, 4 / 3)
"""Proportions of a random crop, width to height."""


@dataclass(frozen=True)
class Augmentation:
    """How training images are augmented.

    `crop` crops the zero-padded image at random and, where the store allows it, mirrors at random. `jitter`
    is the range of brightness, contrast and saturation: 0.4 means factors from 0.6 to 1.4. `erase` is the
    side of a square blanked in every second image, as a fraction of the image's side. `affine` is the
    strength of a random affine map: 0.2 means a shift of up to 20 % of the side, a scale from 0.8 to 1.2, a
    shear of up to 0.2 and a rotation of up to 20 % of a right angle. `grey` is the fraction of images
    without colour, `drop` the fraction of pixels set to zero. `cutmix` is the fraction of queries with a part
    of another query of their task.
    """

    crop: bool = False
    jitter: float = 0.0
    erase: float = 0.0
    affine: float = 0.0
    grey: float = 0.0
    drop: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        fractions(**{name: value for name, value in vars(self).items() if name != "crop"})


def crop_and_flip(
    images: Tensor, index: Tensor, offsets: Tensor, flips: Tensor | None, padding: int
) -> Tensor:
    """Zero-pad each of `images[index]`, crop it at its offset to the original size, and mirror some."""
    height, width = images.shape[-2:]
    padded = F.pad(images.index_select(0, index), (padding,) * 4)
    # A view of all possible crops; indexing copies only the chosen one.
    crops = padded.unfold(2, height, 1).unfold(3, width, 1)
    each = torch.arange(len(index), device=images.device)
    found = crops[each, :, offsets[:, 0], offsets[:, 1]]
    return found if flips is None else torch.where(flips[:, None, None, None], found.flip(-1), found)


def recolour(pixels: Tensor, factors: Tensor) -> Tensor:
    """Scale brightness, contrast (about the image's mean) and saturation (about grey) of pixels 0…255."""
    brightness, contrast, saturation = factors[:, :, None, None, None].unbind(1)
    x = pixels * brightness
    x = torch.lerp(x.mean((1, 2, 3), keepdim=True), x, contrast)
    x = torch.lerp(x.mean(1, keepdim=True), x, saturation)
    return x.clamp_(0, 255)


def random_affine(strength: float, shape: torch.Size, generator: torch.Generator) -> Tensor:
    """Random affine maps `[*shape, 2, 3]` of coordinates from −1 to 1, see `Augmentation`."""
    drawn = torch.rand(*shape, 6, generator=generator, dtype=torch.float32).mul_(2).sub_(1).mul_(strength)
    turn, shear, wider, taller, right, down = drawn.unbind(-1)
    cos, sin = (turn * (torch.pi / 2)).cos(), (turn * (torch.pi / 2)).sin()
    rotation = torch.stack([cos, -sin, sin, cos], -1).view(*shape, 2, 2)
    zero = torch.zeros_like(shear)
    # The map goes from the new image to the old one, so a larger image has smaller factors.
    scale = torch.stack([1 / (1 + wider), shear, zero, 1 / (1 + taller)], -1).view(*shape, 2, 2)
    shift = 2 * torch.stack([right, down], -1).unsqueeze(-1)  # coordinates from −1 to 1: the side is 2
    return torch.cat([rotation @ scale, shift], -1)


def transform(pixels: Tensor, affine: Tensor) -> Tensor:
    """Map each image by its affine map, with bilinear interpolation; zero where the old image ends.

    Unlike the other augmentations it is equal on all devices up to rounding only.
    """
    grid = F.affine_grid(affine, list(pixels.shape), align_corners=False)
    return F.grid_sample(pixels, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def square(corners: Tensor, side: int, size: int) -> Tensor:
    """Return the mask `[N, 1, size, size]` of the square at each corner `[N, 2]`."""
    away = torch.arange(size, device=corners.device) - corners[:, :, None]
    within = (away >= 0) & (away < side)
    return within[:, None, 0, :, None] & within[:, None, 1, None, :]


def crop_padding(size: int) -> int:
    """Return the customary padding: 4 for images of 32 pixels, 8 for 84, in proportion otherwise."""
    return size // 8 if size <= 32 else size // 10


def random_crop(count: int, area: float, size: int, random: torch.Generator) -> Tensor:
    """Affine maps `[count, 2, 3]` of random crops of images of this size.

    A crop has at least `area` of the image and is scaled to the whole; if `area` is 1, images are shifted by
    whole pixels, up to `crop_padding`.
    """
    drawn = uniform(random, count, 4)
    if area == 1:
        most = crop_padding(size)
        sides = torch.ones(count, 2)
        middles = drawn[:, :2].mul(2 * most + 1).floor().sub(most).mul(2 / size)  # the side is 2
    else:
        low, high = torch.tensor(ASPECT).log()
        aspect = torch.exp(low + (high - low) * drawn[:, 0]).sqrt()
        side = (area + (1 - area) * drawn[:, 1]).sqrt()
        sides = torch.stack([side * aspect, side / aspect], 1).clamp_(max=1)
        middles = drawn[:, 2:].mul(2).sub(1) * (1 - sides)
    return torch.cat([torch.diag_embed(sides), middles[:, :, None]], 2)


def random_boxes(count: int, size: int, chance: float, random: torch.Generator) -> Tensor:
    """Edges `[count, 4]` of the boxes of CutMix (Yun et al., ICCV 2019, arXiv:1905.04899).

    The area of a box is uniform between zero and the image's. Images without one, which are a fraction of
    1 − `chance`, have a box of no height.
    """
    drawn = uniform(random, count, 4)
    half = drawn[:, 0].sqrt() * size / 2
    middle_y, middle_x = drawn[:, 1] * size, drawn[:, 2] * size
    half_y = half * (drawn[:, 3] < chance)
    edges = torch.stack([middle_y - half_y, middle_y + half_y, middle_x - half, middle_x + half], 1)
    return edges.round_().clamp_(0, size).long()


def cutmix(x: Tensor, boxes: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Replace a box of every image `[N, C, S, S]` by that of `other`, by default the image before it; also
    return the share of the image that is replaced, `[N]`."""
    size = x.shape[-1]
    at = torch.arange(size, device=x.device)
    top, bottom, left, right = boxes[:, :, None].unbind(1)
    rows, columns = (at >= top) & (at < bottom), (at >= left) & (at < right)
    inside = rows[:, None, :, None] & columns[:, None, None, :]
    fraction = (rows.sum(1) * columns.sum(1)).to(x.dtype) / size**2
    return torch.where(inside, x.roll(1, 0) if other is None else other, x), fraction


def uniform(random: torch.Generator, *shape: int) -> Tensor:
    """Random numbers between 0 and 1."""
    return torch.rand(*shape, generator=random, dtype=torch.float32)
