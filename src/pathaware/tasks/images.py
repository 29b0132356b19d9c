"""Few-shot episodes from a packed image store: drawn on the CPU, gathered wherever the images are."""

from __future__ import annotations

import torch

from pathaware.datasets.store import ImageStore, SplitClasses
from pathaware.errors import UsageError
from pathaware.tasks.episodes import Episodes, TaskSource
from pathaware.tasks.views import Augmentation, ImageViews, Placement, Plan


class ImageEpisodes(TaskSource):
    """N-way episodes of one split; a `TaskSource` in two stages.

    `draw` makes all random choices on the CPU, so a seed means the same episodes on every device. `gather`
    is tensor operations of fixed shapes, without synchronisation when the images are on the device
    (see `ImageViews`), and so can be captured in a CUDA graph with the plan as its input.
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
    ) -> None:
        classes = store.split(split)
        _check(store, split, classes, ways, shots, queries)
        self.store, self.split, self.ways, self.shots, self.queries = store, split, ways, shots, queries
        self.views = ImageViews(
            store, augmentation or Augmentation(), device, dtype, padding=padding, placement=placement
        )
        self.capturable = self.views.on_device and self.views.device.type == "cuda"
        self._starts, self._counts = classes.starts, classes.counts
        self._most = int(classes.counts.max())
        self._labels = torch.arange(ways, device=device).repeat(shots + queries)

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
        return self.views.draw(images, generator)

    def gather(self, plan: Plan) -> Episodes:
        x = self.views.show(plan).view(*plan.images.shape, *self.store.shape)
        y = self._labels.repeat(len(plan), 1)
        support = self.shots * self.ways
        return Episodes(x[:, :support], y[:, :support], x[:, support:], y[:, support:])


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
