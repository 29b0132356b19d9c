"""Labelled images of one or several stores, augmented in batches, for supervised training.

As with episodes, all random choices are made on the CPU (`draw`) and images are computed where they are
stored (`show`): a batch is a few tensor operations of fixed shapes, which a CUDA graph can capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.core.seeding import generator
from pathaware.data.episodes import crop_padding, recolour, transform
from pathaware.data.pixels import ImageInput
from pathaware.data.store import ImageStore

ASPECT = (3 / 4, 4 / 3)
"""Proportions of a random crop, width to height."""
SHOWN = 512
"""Images that are computed at a time without augmentation."""


@dataclass(frozen=True)
class BatchPlan:
    """All random choices of a batch of N images.

    Shapes: `images [N]` (indices), `affine [N, 2, 3]` (crop and mirroring: maps coordinates of the new image
    to those of the old one), `colours [N, 3]` (factors of brightness, contrast and saturation), `boxes
    [N, 4]` (top, bottom, left and right edge of the part that the previous image of the batch replaces).
    """

    images: Tensor
    affine: Tensor
    colours: Tensor
    boxes: Tensor

    def to(self, device: torch.device | str) -> BatchPlan:
        return self._each(lambda t: t.to(device, non_blocking=True))

    def _each(self, change: Callable[[Tensor], Tensor]) -> BatchPlan:
        return BatchPlan(*(change(getattr(self, f.name)) for f in fields(self)))


@dataclass(frozen=True)
class Distortion:
    """How the images of a batch are augmented.

    `crop` is the smallest area of a random crop that is scaled to the whole image, as a fraction; with 1 the
    zero-padded image is cropped instead. `jitter` is the range of brightness, contrast and saturation, and
    `cutmix` the fraction of images with a part of another one. `mirror` mirrors every second image.
    """

    crop: float
    jitter: float
    cutmix: float
    mirror: bool


class ClassImages:
    """Images `[C, size, size]` of some splits of several stores, with one list of classes.

    Images of other sizes are scaled once, when the object is built. They are kept on the device as bytes and
    normalised with the statistics of the first store.
    """

    def __init__(
        self,
        stores: Sequence[ImageStore],
        splits: Sequence[str],
        device: torch.device | str = "cpu",
        *,
        size: int = 0,
    ) -> None:
        self.device = torch.device(device)
        form = ImageInput.of(stores[0])
        self.mirror = all(store.manifest.mirror for store in stores)
        self.inputs = replace(form, size=size or form.size, mirror=self.mirror)
        self.names: list[str] = []
        parts: list[Tensor] = []
        labels: list[Tensor] = []
        for store in stores:
            if store.shape[0] != form.channels:
                raise UsageError(
                    f"{store.name} has {store.shape[0]} colour channels, {stores[0].name} {form.channels}",
                    field="data",
                )
            for split in splits:
                spans = store.split(split)
                for start, count in zip(spans.starts.tolist(), spans.counts.tolist(), strict=True):
                    own = store.images[start : start + count].to(self.device)
                    parts.append(resized(own, self.inputs.size))
                    labels.append(torch.full((count,), len(labels)))
                self.names += [f"{store.name}/{name}" for name in spans.names]
        if not parts:
            stored = ", ".join(store.name for store in stores)
            raise UsageError(f"{stored}: no classes in {' and '.join(splits)}", field="splits")
        self.counts = torch.tensor([len(part) for part in parts])
        self.images = torch.cat(parts)
        self.labels = torch.cat(labels).to(self.device)
        self._mean, self._scale = (t.to(self.device) for t in _scaling(self.inputs))

    def __len__(self) -> int:
        return len(self.images)

    def order(self, seed: int, epoch: int) -> Tensor:
        """The order of all images in an epoch."""
        return torch.randperm(len(self), generator=generator(seed, "pretrain order", epoch))

    def draw(self, images: Tensor, distortion: Distortion, random: torch.Generator) -> BatchPlan:
        """Choose how each of these images `[N]` is augmented."""
        count, size = len(images), self.inputs.size
        colours = _uniform(random, count, 3).mul_(2).sub_(1).mul_(distortion.jitter).add_(1)
        affine = random_crop(count, distortion.crop, size, random)
        if distortion.mirror and self.mirror:
            flips = torch.randint(2, (count,), generator=random, dtype=torch.bool)
            affine[flips, 0, 0] *= -1
        return BatchPlan(images, affine, colours, random_boxes(count, size, distortion.cutmix, random))

    def show(self, plan: BatchPlan) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute a batch: images `[N, C, size, size]`, labels `[N]`, labels of what replaces a part of each
        image `[N]`, and the fraction that is replaced `[N]`."""
        plan = plan.to(self.device)
        pixels = self.images.index_select(0, plan.images).float()
        pixels = recolour(transform(pixels, plan.affine), plan.colours)
        own, other = self.labels[plan.images], self.labels[plan.images.roll(1)]
        mixed, fraction = cutmix(self._normalised(pixels), plan.boxes)
        return mixed, own, other, fraction

    def plain(self, images: Tensor | None = None) -> Iterator[Tensor]:
        """Yield these images, by default all, without augmentation, in batches."""
        chosen = self.images if images is None else self.images[images.to(self.device)]
        for part in chosen.split(SHOWN):
            yield self._normalised(part.float())

    def _normalised(self, pixels: Tensor) -> Tensor:
        return (pixels - self._mean) * self._scale


def resized(images: Tensor, size: int) -> Tensor:
    """Scale bytes `[N, C, H, W]` to a size, smoothly when they become smaller."""
    if images.shape[-2:] == (size, size):
        return images
    options = {"mode": "bicubic", "antialias": True, "align_corners": False}
    scaled = F.interpolate(images.float(), (size, size), **options)  # type: ignore[arg-type]
    return scaled.round_().clamp_(0, 255).to(torch.uint8)


def random_crop(count: int, area: float, size: int, random: torch.Generator) -> Tensor:
    """Affine maps `[count, 2, 3]` of random crops of images of this size.

    A crop has at least `area` of the image and is scaled to the whole; if `area` is 1, images are shifted by
    whole pixels, up to `crop_padding`.
    """
    drawn = _uniform(random, count, 4)
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
    drawn = _uniform(random, count, 4)
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


def _uniform(random: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=random, dtype=torch.float32)


def _scaling(inputs: ImageInput) -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(v, dtype=torch.float32).view(-1, 1, 1) for v in (inputs.mean, inputs.std))
    return mean * 255, 1 / (std * 255)
