"""Few-shot episodes from an image store.

Every source works in two stages: `draw` makes all random choices on the CPU and returns an `EpisodePlan`, so
a seed gives the same images on every device; `gather` (or `show`) computes the images where they are stored.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from pathaware.core.episodes import Episodes, TaskSource, share_of
from pathaware.core.errors import UsageError
from pathaware.core.seeding import fork
from pathaware.data.augmentation import Augmentation as Augmentation
from pathaware.data.augmentation import (
    crop_and_flip,
    crop_padding,
    random_affine,
    random_boxes,
    recolour,
    square,
    transform,
)
from pathaware.data.store import ImageStore, SplitClasses, counted

Placement = Literal["auto", "device", "host"]


@dataclass(frozen=True)
class EpisodePlan:
    """All random choices of a batch of tasks: which images, in which order, and how each is augmented.

    Shapes: `images [T, E]` (indices into the store), `offsets [T, E, 2]` (rows and columns into the padded
    image), `flips [T, E]`, `colours [T, E, 3]` (factors of brightness, contrast and saturation),
    `holes [T, E, 2]` (corner of the erased square; outside the image for none), `labels [T, E]` (the class of
    each image within its task), `affine [T, E, 2, 3]` (maps coordinates of the new image to those of the old
    one), `dropped [T, E, H, W]` (pixels that are set to zero), `boxes [T, Q, 4]` (as in `Episodes`). None:
    not applied, or no labels.
    """

    images: Tensor
    offsets: Tensor | None = None
    flips: Tensor | None = None
    colours: Tensor | None = None
    holes: Tensor | None = None
    labels: Tensor | None = None
    affine: Tensor | None = None
    dropped: Tensor | None = None
    boxes: Tensor | None = None

    def __len__(self) -> int:
        return self.images.shape[0]

    def __getitem__(self, tasks: slice) -> EpisodePlan:
        return self._each(lambda t: t[tasks])

    def to(self, device: torch.device | str) -> EpisodePlan:
        return self._each(lambda t: t.to(device, non_blocking=True))

    def flat(self) -> EpisodePlan:
        """Merge the axes of tasks and examples."""
        return self._each(lambda t: t.flatten(0, 1))

    def reordered(self, order: Tensor) -> EpisodePlan:
        """The same images, each with its augmentation, in the order `[T, E]` of each task."""
        task = torch.arange(len(self))[:, None]
        return self._each(lambda t: t[task, order])

    def part(self, examples: Tensor) -> EpisodePlan:
        """Some examples of every task, by their index `[E]`."""
        return self._each(lambda t: t[:, examples])

    def _each(self, change: Callable[[Tensor], Tensor]) -> EpisodePlan:
        present = {f.name: getattr(self, f.name) for f in fields(self)}
        return EpisodePlan(**{name: change(value) for name, value in present.items() if value is not None})

    def share(self, worker: int, workers: int) -> EpisodePlan:
        """Return one worker's tasks. Every worker draws all tasks, which is cheap, and gathers its own, so
        the tasks of a batch do not depend on the number of workers."""
        own = share_of(len(self), worker, workers)
        return self[own.start : own.stop]


class Views(Protocol):
    """The examples that tasks are made of, images or what is computed from them."""

    store: ImageStore
    augmentation: Augmentation
    device: torch.device
    dtype: torch.dtype
    padding: int
    mirror: bool
    on_device: bool

    def draw(self, images: Tensor, generator: torch.Generator) -> EpisodePlan:
        """Choose the augmentation of these images `[T, E]`."""
        ...

    def episodes(self, plan: EpisodePlan, support: int) -> Episodes:
        """Compute the tasks of a plan, the first `support` examples of each being its support set."""
        ...


class ImageViews:
    """Augmented and normalised images of a store: `draw` chooses the augmentation, `show` computes it.

    `placement` says where the images are kept: `device`, `host` (mapped from the file and copied batch by
    batch), or `auto` (on the device if they take at most half of its free memory).
    """

    def __init__(
        self,
        store: ImageStore,
        augmentation: Augmentation,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        padding: int | None = None,
        placement: Placement = "auto",
    ) -> None:
        self.store, self.augmentation = store, augmentation
        self.device, self.dtype = torch.device(device), dtype
        self.padding = crop_padding(store.shape[1]) if padding is None else padding
        self.mirror = augmentation.crop and store.manifest.mirror
        self.on_device = _fits(store, self.device) if placement == "auto" else placement == "device"
        self._images = store.tensor(self.device if self.on_device else "cpu")
        # Statistics are of pixels in 0…1; scaling them once saves scaling the pixels.
        wide = torch.promote_types(dtype, torch.float32)
        self._mean = _per_channel(store.manifest.mean, wide).mul(255).to(self.device)
        self._scale = _per_channel(store.manifest.std, wide).mul(255).reciprocal().to(self.device)
        self._side = round(augmentation.erase * store.shape[1])

    def draw(self, images: Tensor, generator: torch.Generator) -> EpisodePlan:
        size, shape = self.store.shape[1], images.shape
        augmentation = self.augmentation
        offsets = flips = colours = holes = affine = dropped = None
        if self.augmentation.crop:
            offsets = torch.randint(2 * self.padding + 1, (*shape, 2), generator=generator)
        if self.mirror:
            flips = torch.randint(2, shape, generator=generator, dtype=torch.bool)
        if augmentation.jitter or augmentation.grey:
            factors = torch.rand(*shape, 3, generator=generator, dtype=torch.float32)
            colours = factors.mul_(2).sub_(1).mul_(augmentation.jitter).add_(1)
        if self._side:
            holes = torch.randint(1 - self._side, size, (*shape, 2), generator=generator)
            spared = torch.randint(2, (*shape, 1), generator=generator, dtype=torch.bool)
            holes.masked_fill_(spared, size)
        if augmentation.grey and colours is not None:
            colours[..., 2].masked_fill_(torch.rand(shape, generator=generator) < augmentation.grey, 0.0)
        if augmentation.affine:
            affine = random_affine(augmentation.affine, images.shape, generator)
        if augmentation.drop:
            pixels = (*shape, *self.store.shape[1:])
            dropped = torch.rand(pixels, generator=generator, dtype=torch.float32) < augmentation.drop
        return EpisodePlan(images, offsets, flips, colours, holes, affine=affine, dropped=dropped)

    def episodes(self, plan: EpisodePlan, support: int) -> Episodes:
        assert plan.labels is not None
        x = self.show(plan).view(*plan.images.shape, *self.store.shape)
        y = plan.labels.to(x.device)
        return Episodes(x[:, :support], y[:, :support], x[:, support:], y[:, support:])

    def show(self, plan: EpisodePlan) -> Tensor:
        """Compute the images `[T·E, C, H, W]` of a plan, whose tensors may be on the CPU or on the device."""
        plan = plan.flat()
        if self.on_device:
            plan = plan.to(self.device)
            source, index = self._images, plan.images
        else:
            # Copy only the chosen images; the index then selects all of them, in order.
            source = self._images.index_select(0, plan.images.cpu()).to(self.device)
            plan, index = plan.to(self.device), torch.arange(len(source), device=self.device)
        if plan.offsets is None:
            pixels = source.index_select(0, index)
        else:
            pixels = crop_and_flip(source, index, plan.offsets, plan.flips, self.padding)
        x = pixels.to(self._mean.dtype)
        if plan.affine is not None:
            x = transform(x, plan.affine.to(x.dtype))
        if plan.colours is not None:
            x = recolour(x, plan.colours.to(x.dtype))
        if plan.dropped is not None:
            x = x.masked_fill(plan.dropped[:, None], 0.0)
        # Two separately rounded operations, not a fused one, give the same bits on every device.
        x = x.sub_(self._mean).mul_(self._scale)
        if plan.holes is not None:
            x = x.masked_fill_(square(plan.holes, self._side, x.shape[-1]), 0.0)
        return x.to(self.dtype)


def _per_channel(values: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype).view(-1, 1, 1)


def _fits(store: ImageStore, device: torch.device) -> bool:
    if device.type != "cuda" or store.holds(device):
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return store.manifest.bytes <= free // 2


class ImageEpisodes(TaskSource):
    """N-way episodes of one split; without `shuffle` they are laid out shot by shot, class by class.

    `gather` consists of tensor operations of fixed shapes, without synchronisation when the images are on
    the device (see `ImageViews`), so it can be captured in a CUDA graph with the plan as its input.
    """

    def __init__(
        self,
        store: ImageStore,
        split: str,
        ways: int,
        shots: int,
        queries: int,
        augmentation: Augmentation | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        padding: int | None = None,
        placement: Placement = "auto",
        shuffle: bool = True,
        mirror_support: bool = False,
    ) -> None:
        if mirror_support and not store.manifest.mirror:
            raise UsageError(f"mirror_support: the images of {store.name} must not be mirrored")
        classes = store.split(split)
        _check(store, split, classes, ways, shots, queries)
        self.store, self.split, self.ways, self.shots, self.queries = store, split, ways, shots, queries
        self.shuffle, self.mirror_support = shuffle, mirror_support
        self.keep_indices = False
        """True if episodes should carry the indices of their queries in the store."""
        self.views: Views = ImageViews(
            store, augmentation or Augmentation(), device, dtype, padding=padding, placement=placement
        )
        self.capturable = self.views.on_device and self.views.device.type == "cuda"
        self._starts, self._counts = classes.starts, classes.counts
        self._most = int(classes.counts.max())
        self._labels = torch.arange(ways).repeat(shots + queries)

    @property
    def images(self) -> ImageEpisodes:
        """The tasks from which these are made: themselves."""
        return self

    def with_views(self, views: Views) -> ImageEpisodes:
        """The same tasks with other views of their images."""
        changed = copy.copy(self)
        changed.views, changed.capturable = views, False
        return changed

    def draw(self, tasks: int, generator: torch.Generator) -> EpisodePlan:
        """Choose classes, then images of each class, both without replacement; then shuffle.

        Support set and query set are shuffled separately, so that no position tells the class. The order
        comes from a generator of its own: a seed gives the same images, classes and augmentation with and
        without shuffling, so results of earlier versions, which did not shuffle, remain paired with new ones.
        """
        order = fork(generator, "order")
        per_class = self.shots + self.queries
        # The top-k of independent random keys is a uniform choice without replacement, in random order.
        keys = torch.rand(tasks, len(self._starts), generator=generator, dtype=torch.float64)
        classes = keys.topk(self.ways).indices
        keys = torch.rand(tasks, self.ways, self._most, generator=generator, dtype=torch.float64)
        keys.masked_fill_(torch.arange(self._most) >= self._counts[classes, None], -1.0)
        images = self._starts[classes, None] + keys.topk(per_class).indices
        images = images.transpose(1, 2).reshape(tasks, per_class * self.ways)  # shot by shot
        plan = replace(self.views.draw(images, generator), labels=self._labels.expand_as(images))
        if self.shuffle:
            keys = torch.rand(images.shape, generator=order, dtype=torch.float64)
            keys[:, self.shots * self.ways :] += 1  # all queries after the support set
            plan = plan.reordered(keys.argsort(1))
        if not self.views.augmentation.cutmix:
            return plan
        count = tasks * self.queries * self.ways
        chance, size = self.views.augmentation.cutmix, self.store.shape[1]
        boxes = random_boxes(count, size, chance, fork(generator, "cutmix"))
        return replace(plan, boxes=boxes.unflatten(0, (tasks, -1)))

    def gather(self, plan: EpisodePlan) -> Episodes:
        support = self.shots * self.ways
        episodes = self.views.episodes(plan, support)
        if self.mirror_support:
            x, y = episodes.support_x, episodes.support_y
            mirrored = torch.cat([x, x.flip(-1)], dim=1), torch.cat([y, y], dim=1)
            episodes = replace(episodes, support_x=mirrored[0], support_y=mirrored[1])
        if self.keep_indices:
            episodes = replace(episodes, query_images=plan.images[:, support:].to(self.views.device))
        if plan.boxes is not None:
            episodes = replace(episodes, query_boxes=plan.boxes.to(self.views.device))
        return episodes


USUAL = (5, 5, 15)
"""Ways, shots and queries of tasks, as in most papers."""
ENOUGH = (25, 6)
"""The classes, and images in each, that suffice for training, validation and test on tasks of five classes:
15, 5 and 5 classes, one support image and five queries."""


def fitting_tasks(classes: int, images: int) -> tuple[int, int, int]:
    """The usual ways, shots and queries, or as many as these numbers of classes and images allow.

    >>> fitting_tasks(20, 600), fitting_tasks(5, 12), fitting_tasks(3, 6)
    ((5, 5, 15), (5, 5, 7), (3, 1, 5))
    """
    ways, shots, queries = USUAL
    shots = shots if images >= 2 * shots else 1
    return min(ways, classes), shots, min(queries, images - shots)


def _check(store: ImageStore, split: str, classes: SplitClasses, ways: int, shots: int, queries: int) -> None:
    for name, value in (("ways", ways), ("shots", shots), ("queries", queries)):
        if value < 1:
            raise UsageError(f"{name} {value}: must be at least 1")
    if len(classes) < ways:
        raise UsageError(
            f"ways {ways}: the {split} split of {store.name} has only {counted(len(classes), 'class')}"
        )
    smallest = int(classes.counts.argmin())
    images = int(classes.counts[smallest])
    if images < shots + queries:
        _, fewer, others = fitting_tasks(ways, images)
        fitting = f"; shots {fewer} and queries {others} fit" if others else ""
        raise UsageError(
            f"shots {shots} and queries {queries}: class {classes.names[smallest]} of {store.name} "
            f"has only {counted(images, 'image')}; training takes shots + queries of every class, prediction "
            f"any number{fitting}"
        )
