"""The replay buffer of an online learner: held-out items, each with the items that were learned before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.core.settings import at_least, one_of

Item = tuple[Tensor, Tensor]
"""Inputs `[N, …]` and targets `[N, …]` of a few examples that arrive together."""

Forget = Literal["reservoir", "oldest"]


@dataclass(frozen=True)
class ReplaySample:
    """A held-out item, and the items of its data set that φ had learned before it, in order."""

    learned: tuple[Item, ...]
    held_out: Item

    @property
    def shape(self) -> tuple[torch.Size, ...]:
        """Samples of equal shape can run as one batch."""
        return tuple(tensor.shape for item in (*self.learned, self.held_out) for tensor in item)


class Buffer:
    """Keeps at most `capacity` samples.

    `forget`: which sample a new one replaces. `oldest` keeps the most recent ones. `reservoir` keeps every
    sample so far with equal probability (Vitter's algorithm R), so that early data sets are not lost.
    """

    def __init__(self, capacity: int, forget: Forget = "reservoir") -> None:
        at_least(1, buffer=capacity)
        one_of(Forget, forget=forget)
        self.capacity, self.forget = capacity, forget
        self.seen = 0
        self.samples: list[ReplaySample] = []

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[ReplaySample]:
        return iter(self.samples)

    def add(self, sample: ReplaySample, generator: torch.Generator) -> None:
        self.seen += 1
        if len(self) < self.capacity:
            self.samples.append(sample)
        elif self.forget == "oldest":
            self.samples = [*self.samples[1:], sample]
        elif (index := int(torch.randint(self.seen, (), generator=generator))) < self.capacity:
            self.samples[index] = sample

    def draw(self, count: int, generator: torch.Generator) -> list[ReplaySample]:
        """Draw `count` different samples at random, or all if there are fewer."""
        order = torch.randperm(len(self), generator=generator)[:count]
        return [self.samples[i] for i in order.tolist()]

    def state_dict(self) -> dict[str, Any]:
        samples = [{"learned": list(each.learned), "held_out": each.held_out} for each in self]
        return {"seen": self.seen, "lessons": samples}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if len(state["lessons"]) > self.capacity:
            raise UsageError(
                f"buffer: {self.capacity} is less than the {len(state['lessons'])} samples to be loaded"
            )
        self.seen = int(state["seen"])
        self.samples = [ReplaySample(tuple(each["learned"]), each["held_out"]) for each in state["lessons"]]


def group_by_shape(samples: Sequence[ReplaySample]) -> list[list[ReplaySample]]:
    """Group the samples that can run as one batch."""
    groups: dict[tuple[torch.Size, ...], list[ReplaySample]] = {}
    for sample in samples:
        groups.setdefault(sample.shape, []).append(sample)
    return list(groups.values())
