"""Tasks from images without labels: UMTRA (Khodadadeh, Bölöni and Shah, NeurIPS 2019, arXiv:1811.11819)."""

from __future__ import annotations

from dataclasses import fields, replace

import torch

from pathaware.core.episodes import Episodes, TaskSource
from pathaware.core.errors import UsageError
from pathaware.core.settings import at_least
from pathaware.data.augmentation import Augmentation
from pathaware.data.episodes import EpisodePlan, ImageViews, Placement
from pathaware.data.store import ImageStore, counted

CHARACTERS = Augmentation(affine=0.2, drop=0.5)
"""For ink on black. The authors shift Omniglot by up to 6 of 28 pixels and set half of the pixels to 0."""

PHOTOGRAPHS = Augmentation(crop=True, jitter=0.4, grey=0.5, affine=0.25, erase=0.3)
"""For all other images, in place of the authors' AutoAugment: shape, colour, and parts that are missing."""


class UnlabelledEpisodes(TaskSource):
    """N-way episodes in which every class is one image and its augmentations; labels are never read.

    N images are drawn at random from the whole split. The first support image of a class is the image itself;
    all others, and the queries, are augmentations of it. Two of N images may show the same thing, which is
    unlikely if there are many more classes than N.

    A strength of `augmentation` that is zero is replaced by that of `CHARACTERS` or `PHOTOGRAPHS`.
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
        placement: Placement = "auto",
    ) -> None:
        at_least(1, ways=ways, shots=shots, queries=queries)
        self._images = store.split(split).members
        if len(self._images) < ways:
            raise UsageError(
                f"ways {ways}: the {split} split of {store.name} has only "
                f"{counted(len(self._images), 'image')}"
            )
        self.store, self.ways, self.shots, self.queries = store, ways, shots, queries
        default = CHARACTERS if store.manifest.ink else PHOTOGRAPHS
        augmentation = strong(augmentation or Augmentation(), default)
        self.views = ImageViews(store, augmentation, device, dtype, placement=placement)
        self.capturable = self.views.on_device and self.views.device.type == "cuda"
        self._labels = torch.arange(ways).repeat(shots + queries)

    def draw(self, tasks: int, generator: torch.Generator) -> EpisodePlan:
        """Choose the images without replacement, then their augmentations; then shuffle."""
        keys = torch.rand(tasks, len(self._images), generator=generator, dtype=torch.float64)
        images = self._images[keys.topk(self.ways).indices]
        plan = self.views.draw(images.repeat(1, self.shots + self.queries), generator)
        self._keep(plan, slice(self.ways))
        plan = replace(plan, labels=self._labels.expand_as(plan.images))
        keys = torch.rand(plan.images.shape, generator=generator, dtype=torch.float64)
        keys[:, self.shots * self.ways :] += 1  # all queries after the support set
        return plan.reordered(keys.argsort(1))

    def _keep(self, plan: EpisodePlan, images: slice) -> None:
        """Take back the augmentation of some images of each task."""
        unchanged = {
            "offsets": self.views.padding,
            "flips": False,
            "colours": 1.0,
            "holes": self.store.shape[1],
            "affine": torch.eye(2, 3),
            "dropped": False,
        }
        for name, value in unchanged.items():
            chosen = getattr(plan, name)
            if chosen is not None:
                chosen[:, images] = value

    def gather(self, plan: EpisodePlan) -> Episodes:
        return replace(self.views.episodes(plan, self.shots * self.ways), labelled=False)


def strong(given: Augmentation, default: Augmentation) -> Augmentation:
    """Replace strengths that are zero by their defaults."""
    return replace(default, **{f.name: value for f in fields(given) if (value := getattr(given, f.name))})
