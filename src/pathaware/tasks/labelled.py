"""Images with the label of their class, in shuffled batches: what ordinary supervised training sees."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pathaware.datasets.store import ImageStore
from pathaware.seeding import generator
from pathaware.tasks.views import Augmentation, ImageViews, Plan


class LabelledImages:
    """All images of a split, each with the number of its class. Drawn and shown as episodes are."""

    def __init__(
        self,
        store: ImageStore,
        split: str,
        augmentation: Augmentation,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        spans = store.split(split)
        self.classes = len(spans)
        self.views = ImageViews(store, augmentation, device, dtype)
        self.capturable = self.views.on_device and self.views.device.type == "cuda"
        self._images = torch.cat(
            [
                torch.arange(s, s + n)
                for s, n in zip(spans.starts.tolist(), spans.counts.tolist(), strict=True)
            ]
        )
        owner = torch.full((len(store),), -1)
        owner[self._images] = torch.arange(self.classes).repeat_interleave(spans.counts)
        self._owner = owner.to(device)

    def batches(self, size: int, epoch: int, seed: int) -> Iterator[Plan]:
        """An epoch: every image once, in batches of one size; a remainder waits for the next epoch."""
        random = generator(seed, "pretrain", epoch)
        order = self._images[torch.randperm(len(self._images), generator=random)]
        for first in range(0, len(order) - size + 1, size):
            yield self.views.draw(order[None, first : first + size], random)

    def __len__(self) -> int:
        return len(self._images)

    def show(self, plan: Plan) -> tuple[Tensor, Tensor]:
        """Images `[N, C, H, W]` and labels `[N]`."""
        return self.views.show(plan), self._owner[plan.images.flatten().to(self._owner.device)]
