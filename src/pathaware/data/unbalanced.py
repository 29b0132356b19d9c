"""Tasks whose classes are not equally frequent.

`UnbalancedQueries`: query sets in which some classes are more frequent than others. Their proportions are
drawn from a Dirichlet distribution with α = 2, as in Veilleux, Boudiaf, Piantanida and Ben Ayed (NeurIPS
2021, arXiv:2204.11181). The size of the query set, the classes and the support sets are those of the balanced
tasks of the same seed.

`VaryingTasks`: tasks with different numbers of classes and of support images.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from pathaware.core.episodes import Episodes, TaskSource, share_of
from pathaware.core.errors import UsageError
from pathaware.data.episodes import EpisodePlan, ImageEpisodes, Views

ALPHA = 2
"""Concentration of the Dirichlet distribution; larger values are closer to balance."""


@dataclass(frozen=True)
class UnbalancedPlan:
    """The plan of tasks with many queries, and how many of each class to keep: `counts [T, ways]`."""

    episodes: EpisodePlan
    counts: Tensor

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, tasks: slice) -> UnbalancedPlan:
        return UnbalancedPlan(self.episodes[tasks], self.counts[tasks])

    def share(self, worker: int, workers: int) -> UnbalancedPlan:
        own = share_of(len(self), worker, workers)
        return self[own.start : own.stop]


class DerivedTasks(TaskSource):
    """Tasks that are made from those of `images`."""

    images: ImageEpisodes

    def with_views(self, views: Views) -> Self:
        """The same tasks with other views of their images."""
        changed = copy.copy(self)
        changed.images = self.images.with_views(views)
        return changed


class UnbalancedQueries(DerivedTasks):
    """The tasks of `balanced` with the same number of queries, unevenly divided among the classes.

    No class can have more queries than it has images beside the support set. Where a draw asks for more, the
    other classes get the rest.
    """

    def __init__(self, balanced: ImageEpisodes) -> None:
        self.ways, self.total = balanced.ways, balanced.ways * balanced.queries
        smallest = int(balanced.store.split(balanced.split).counts.min())
        self.most = min(self.total, smallest - balanced.shots)
        if self.most <= balanced.queries:
            raise UsageError(
                f"{balanced.store.name} has a class of {smallest} images, too few for unbalanced queries; "
                "use fewer queries per class",
                field="balance",
            )
        views = balanced.views
        self.images = ImageEpisodes(
            *(balanced.store, balanced.split, balanced.ways, balanced.shots, self.most),
            *(views.augmentation, views.device, views.dtype),
            padding=views.padding,
        )

    def draw(self, tasks: int, generator: torch.Generator) -> UnbalancedPlan:
        episodes = self.images.draw(tasks, generator)
        # A gamma variable of integer shape is a sum of exponential ones.
        uniform = 1 - torch.rand(tasks, self.ways, ALPHA, generator=generator, dtype=torch.float64)
        gamma = -uniform.log().sum(-1)
        return UnbalancedPlan(episodes, counts(gamma / gamma.sum(-1, keepdim=True), self.total, self.most))

    def gather(self, plan: UnbalancedPlan) -> Episodes:
        """Keep the first queries of each class, in whatever order they come."""
        wide = self.images.gather(plan.episodes)
        member = wide.query_y[:, :, None] == torch.arange(self.ways, device=wide.query_y.device)
        rank = (member.cumsum(1) * member).sum(-1)  # 1 for the first query of its class
        kept = rank <= plan.counts.to(rank.device).gather(1, wide.query_y)
        shape = len(plan), self.total
        x = wide.query_x[kept].unflatten(0, shape)
        return Episodes(wide.support_x, wide.support_y, x, wide.query_y[kept].unflatten(0, shape))


def counts(proportions: Tensor, total: int, most: int) -> Tensor:
    """Whole numbers `[T, ways]` in about these proportions that add up to `total`, none over `most`."""
    wanted = proportions * total
    found = wanted.floor().clamp(max=most)
    while (short := found.sum(-1) < total).any():
        lacking = (wanted - found).masked_fill(found >= most, -torch.inf)
        found[short, lacking.argmax(-1)[short]] += 1
    return found.long()


class VaryingTasks(DerivedTasks):
    """Tasks with 2 to `ways` classes and 1 to `shots` support images per class.

    `images` draws tasks of `ways` classes with `shots` images, shot by shot; each task keeps some of them.
    The number of classes is uniform and the largest number of shots is uniform in its logarithm. In every
    second task all classes have that many, in the others each has its own number, uniform up to the largest.
    A support set ends in padding, examples of the label −1, so that tasks of a batch have equal shapes. A
    query set has twice `queries` images, each of any class of the task.
    """

    def __init__(self, images: ImageEpisodes) -> None:
        if images.shuffle:
            raise ValueError("the widest tasks must be laid out shot by shot")
        self.images, self.total = images, 2 * images.queries

    def draw(self, tasks: int, generator: torch.Generator) -> UnbalancedPlan:
        plan = self.images.draw(tasks, generator)
        ways, shots = self.images.ways, self.images.shots
        chosen = torch.randint(2, ways + 1, (tasks, 1), generator=generator)
        uniform = torch.rand(tasks, 1, generator=generator, dtype=torch.float64)
        most = ((shots + 1) ** uniform).floor().clamp(1, shots)
        each = torch.rand(tasks, ways, generator=generator, dtype=torch.float64).mul(most).ceil().clamp(min=1)
        balanced = torch.rand(tasks, 1, generator=generator, dtype=torch.float64) < 0.5
        kept = torch.where(balanced, most.expand_as(each), each)
        kept = kept.masked_fill(torch.arange(ways) >= chosen, 0).long()
        keys = torch.rand(plan.images.shape, generator=generator, dtype=torch.float64)
        assert plan.labels is not None
        shot = torch.arange(plan.images.shape[1]) // ways
        count = kept.gather(1, plan.labels)
        support = shot < shots
        wanted = torch.where(support, shot < count, count > 0)
        # In this order: the support set, images that are not used, queries; both sets in random order.
        first = torch.where(support & wanted, 0, torch.where(wanted, 2, 1))
        plan = replace(plan, labels=plan.labels.masked_fill(~wanted, -1))
        return UnbalancedPlan(plan.reordered((keys + first).argsort(1)), kept)

    def gather(self, plan: UnbalancedPlan) -> Episodes:
        size = int(plan.counts.sum(1).max())
        part = plan.episodes.part(torch.cat([torch.arange(size), torch.arange(-self.total, 0)]))
        labels = part.labels
        assert labels is not None
        # Queries of one task may reach into the support part of another one's row: these are padding.
        padding = torch.arange(size) >= plan.counts.sum(1, keepdim=True)
        labels = torch.cat([labels[:, :size].masked_fill(padding, -1), labels[:, size:]], 1)
        return self.images.views.episodes(replace(part, labels=labels), size)
