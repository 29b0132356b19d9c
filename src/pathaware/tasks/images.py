"""Few-shot episodes from a packed image store: drawn on the CPU, gathered wherever the images are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pathaware.datasets.store import ImageStore, SplitClasses
from pathaware.errors import UsageError
from pathaware.tasks.episodes import Episodes, TaskSource


@dataclass(frozen=True)
class Plan:
    """Which images make up T episodes and how each is cropped and mirrored: all the randomness there is.

    Shapes: `images [T, E]` (indices into the store), `offsets [T, E, 2]` (rows and columns into the padded
    image), `flips [T, E]`; the last two are None where nothing is cropped or mirrored.
    """

    images: Tensor
    offsets: Tensor | None = None
    flips: Tensor | None = None

    def __len__(self) -> int:
        return self.images.shape[0]

    def __getitem__(self, tasks: slice) -> Plan:
        return self._each(lambda t: t[tasks])

    def to(self, device: torch.device | str) -> Plan:
        return self._each(lambda t: t.to(device, non_blocking=True))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Plan:
        offsets = None if self.offsets is None else change(self.offsets)
        flips = None if self.flips is None else change(self.flips)
        return Plan(change(self.images), offsets, flips)

    def share(self, worker: int, workers: int) -> Plan:
        """One worker's part. Every worker draws all tasks (that is cheap) and gathers its own, so the tasks
        of a batch do not depend on how many workers there are."""
        if not 0 <= worker < workers:
            raise UsageError(
                f"worker {worker}: must be at least 0 and below the number of workers, {workers}"
            )
        return self[len(self) * worker // workers : len(self) * (worker + 1) // workers]


class ImageEpisodes(TaskSource):
    """N-way episodes of one split; a `TaskSource` in two stages.

    `draw` makes all random choices on the CPU, so a seed means the same episodes on every device. `gather`
    is tensor operations of fixed shapes, without synchronisation when the images are on the device
    (`on_device`), and so can be captured in a CUDA graph with the plan as its input.
    """

    def __init__(
        self,
        store: ImageStore,
        split: str,
        ways: int,
        shots: int,
        queries: int,
        augment: bool = False,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        padding: int | None = None,
        placement: Literal["auto", "device", "host"] = "auto",
    ) -> None:
        """`augment` crops at random from the zero-padded image and, where the store allows it, mirrors.

        `placement` says where the images are kept: on the device, in host memory (mapped from the file, and
        copied episode by episode), or on the device if they take at most half of its free memory.
        """
        classes = store.split(split)
        _check(store, split, classes, ways, shots, queries)
        self.store, self.split, self.ways, self.shots, self.queries = store, split, ways, shots, queries
        self.device, self.dtype = torch.device(device), dtype
        self.padding = crop_padding(store.shape[1]) if padding is None else padding
        self.augment = augment
        self.mirror = augment and store.manifest.mirror
        self._starts, self._counts = classes.starts, classes.counts
        self._most = int(classes.counts.max())
        self.on_device = _fits(store, self.device) if placement == "auto" else placement == "device"
        self.capturable = self.on_device and self.device.type == "cuda"
        self._images = store.tensor(self.device if self.on_device else "cpu")
        # Statistics are of pixels in 0…1; scaled once here, the pixels need not be.
        wide = torch.promote_types(dtype, torch.float32)
        self._mean = _per_channel(store.manifest.mean, wide).mul(255).to(self.device)
        self._scale = _per_channel(store.manifest.std, wide).mul(255).reciprocal().to(self.device)
        self._labels = torch.arange(ways, device=self.device).repeat(shots + queries)

    def draw(self, tasks: int, generator: torch.Generator) -> Plan:
        """Choose classes, then images of each, both without replacement."""
        per_class = self.shots + self.queries
        # The largest of independent random keys are a uniform choice without replacement, in random order.
        keys = torch.rand(tasks, len(self._starts), generator=generator, dtype=torch.float64)
        classes = keys.topk(self.ways).indices
        keys = torch.rand(tasks, self.ways, self._most, generator=generator, dtype=torch.float64)
        keys.masked_fill_(torch.arange(self._most) >= self._counts[classes, None], -1.0)
        images = self._starts[classes, None] + keys.topk(per_class).indices
        images = images.transpose(1, 2).reshape(tasks, per_class * self.ways)  # shot by shot
        offsets = flips = None
        if self.augment:
            offsets = torch.randint(2 * self.padding + 1, (*images.shape, 2), generator=generator)
        if self.mirror:
            flips = torch.randint(2, images.shape, generator=generator, dtype=torch.bool)
        return Plan(images, offsets, flips)

    def gather(self, plan: Plan) -> Episodes:
        """The episodes of a plan, whose tensors may be on the CPU or on the device."""
        tasks, examples = plan.images.shape
        if self.on_device:
            plan = plan.to(self.device)
            source, index = self._images, plan.images.flatten()
        else:
            # Only the chosen images travel; what was chosen is then all of them, in order.
            source = self._images.index_select(0, plan.images.flatten().cpu()).to(self.device)
            plan, index = plan.to(self.device), torch.arange(len(source), device=self.device)
        if plan.offsets is None:
            pixels = source.index_select(0, index)
        else:
            flips = None if plan.flips is None else plan.flips.flatten()
            pixels = crop_and_flip(source, index, plan.offsets.flatten(0, 1), flips, self.padding)
        # Two separately rounded steps, not one fused: every device then gives the same bits.
        x = pixels.to(self._mean.dtype).sub_(self._mean).mul_(self._scale).to(self.dtype)
        x = x.view(tasks, examples, *self.store.shape)
        y = self._labels.repeat(tasks, 1)
        support = self.shots * self.ways
        return Episodes(x[:, :support], y[:, :support], x[:, support:], y[:, support:])


def crop_and_flip(
    images: Tensor, index: Tensor, offsets: Tensor, flips: Tensor | None, padding: int
) -> Tensor:
    """`images[index]`, each zero-padded, cropped at its offsets to its own size, and mirrored or not."""
    height, width = images.shape[-2:]
    padded = torch.nn.functional.pad(images.index_select(0, index), (padding,) * 4)
    # All crops there could be, as a view; indexing copies only the one chosen for each image.
    crops = padded.unfold(2, height, 1).unfold(3, width, 1)
    each = torch.arange(len(index), device=images.device)
    found = crops[each, :, offsets[:, 0], offsets[:, 1]]
    return found if flips is None else torch.where(flips[:, None, None, None], found.flip(-1), found)


def crop_padding(size: int) -> int:
    """The customary padding: 4 for images of 32 pixels, 8 for 84, and in proportion for other sizes."""
    return size // 8 if size <= 32 else size // 10


def _per_channel(values: tuple[float, ...], dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, dtype=dtype).view(-1, 1, 1)


def _fits(store: ImageStore, device: torch.device) -> bool:
    if device.type != "cuda" or store.holds(device):
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return store.manifest.bytes <= free // 2


def _check(store: ImageStore, split: str, classes: SplitClasses, ways: int, shots: int, queries: int) -> None:
    for name, value in (("ways", ways), ("shots", shots), ("queries", queries)):
        if value < 1:
            raise UsageError(f"{name} {value}: must be at least 1")
    if len(classes) < ways:
        raise UsageError(f"ways {ways}: the {split} split of {store.name} has only {len(classes)} classes")
    smallest = int(classes.counts.argmin())
    if int(classes.counts[smallest]) < shots + queries:
        raise UsageError(
            f"shots {shots} and queries {queries}: class {classes.names[smallest]} of {store.name} "
            f"has only {int(classes.counts[smallest])} images"
        )
