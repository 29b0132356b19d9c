"""Labelled images of one or several stores, augmented in batches, for supervised training.

As with episodes, all random choices are made on the CPU (`draw`) and images are computed where they are
stored (`show`): a batch is a few tensor operations of fixed shapes, which a CUDA graph can capture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.core.seeding import generator
from pathaware.data.augmentation import Augmentation, cutmix, random_boxes, random_crop, uniform
from pathaware.data.episodes import EpisodePlan, ImageViews
from pathaware.data.pixels import ImageInput
from pathaware.data.store import ClassSpan, ImageStore

SHOWN = 512
"""Images that are computed at a time without augmentation."""


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

    They are kept on the device as bytes and normalised with the statistics of the first store.
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
        self.store = joined(stores, splits, self.device, size or stores[0].shape[1])
        self.views = ImageViews(self.store, Augmentation(), self.device, placement="device")
        self.inputs = ImageInput.of(self.store)
        classes = self.store.split("train")
        self.names, self.counts = list(classes.names), classes.counts
        self.labels = torch.arange(len(classes)).repeat_interleave(classes.counts).to(self.device)

    def __len__(self) -> int:
        return len(self.store)

    def order(self, seed: int, epoch: int) -> Tensor:
        """The order of all images in an epoch."""
        return torch.randperm(len(self), generator=generator(seed, "pretrain order", epoch))

    def draw(self, images: Tensor, distortion: Distortion, random: torch.Generator) -> EpisodePlan:
        """Choose how each of these images `[N]` is augmented: the plan of one task without labels."""
        count, size = len(images), self.inputs.size
        colours = uniform(random, count, 3).mul_(2).sub_(1).mul_(distortion.jitter).add_(1)
        affine = random_crop(count, distortion.crop, size, random)
        if distortion.mirror and self.inputs.mirror:
            flips = torch.randint(2, (count,), generator=random, dtype=torch.bool)
            affine[flips, 0, 0] *= -1
        boxes = random_boxes(count, size, distortion.cutmix, random)
        return EpisodePlan(images[None], colours=colours[None], affine=affine[None], boxes=boxes[None])

    def show(self, plan: EpisodePlan) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute a batch: images `[N, C, size, size]`, labels `[N]`, labels of what replaces a part of each
        image `[N]`, and the fraction that is replaced `[N]`."""
        plan = plan.to(self.device)
        assert plan.boxes is not None
        images, boxes = plan.images[0], plan.boxes[0]
        mixed, fraction = cutmix(self.views.show(plan), boxes)
        return mixed, self.labels[images], self.labels[images.roll(1)], fraction

    def plain(self, images: Tensor | None = None) -> Iterator[Tensor]:
        """Yield these images, by default all, without augmentation, in batches."""
        chosen = torch.arange(len(self)) if images is None else images
        for part in chosen.split(SHOWN):
            yield self.views.show(EpisodePlan(part[None]))


def joined(
    stores: Sequence[ImageStore], splits: Sequence[str], device: torch.device, size: int
) -> ImageStore:
    """The classes of some splits of several stores as the training split of one store in memory, with images
    of one size."""
    first = stores[0]
    spans: list[ClassSpan] = []
    parts: list[Tensor] = []
    for store in stores:
        if store.shape[0] != first.shape[0]:
            raise UsageError(
                f"{store.name} has {store.shape[0]} colour channels, {first.name} {first.shape[0]}",
                field="data",
            )
        for split in splits:
            classes = store.split(split)
            for name, images in zip(classes.names, classes.of_each(store.images), strict=True):
                spans.append(ClassSpan(f"{store.name}/{name}", "train", sum(map(len, parts)), len(images)))
                parts.append(resized(images.to(device), size))
    if not parts:
        stored = ", ".join(store.name for store in stores)
        raise UsageError(f"{stored}: no classes in {' and '.join(splits)}", field="splits")
    mirror = all(store.manifest.mirror for store in stores)
    shape = (first.shape[0], size, size)
    manifest = replace(first.manifest, shape=shape, classes=tuple(spans), mirror=mirror, sha256="")
    return ImageStore(manifest, torch.cat(parts))


def resized(images: Tensor, size: int) -> Tensor:
    """Scale bytes `[N, C, H, W]` to a size, smoothly when they become smaller."""
    if images.shape[-2:] == (size, size):
        return images
    options = {"mode": "bicubic", "antialias": True, "align_corners": False}
    scaled = F.interpolate(images.float(), (size, size), **options)  # type: ignore[arg-type]
    return scaled.round_().clamp_(0, 255).to(torch.uint8)
