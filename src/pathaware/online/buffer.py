"""What an online learner remembers: held-out items, each with the way that led to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.core.settings import at_least

Item = tuple[Tensor, Tensor]
"""Inputs `[N, …]` and targets `[N, …]` of a few examples that come together."""

Forget = Literal["reservoir", "oldest"]


@dataclass(frozen=True)
class Lesson:
    """A held-out item, and the items of its data set that φ had learned before it, in their order."""

    learned: tuple[Item, ...]
    held_out: Item

    @property
    def shape(self) -> tuple[torch.Size, ...]:
        """Lessons of one shape can run side by side."""
        return tuple(tensor.shape for item in (*self.learned, self.held_out) for tensor in item)


class Buffer:
    """At most `capacity` lessons.

    What is forgotten for a new one: the `oldest`; or, with `reservoir`, whatever keeps every lesson so far
    equally likely to be here (Vitter's algorithm R), so that early data sets are not lost to late ones.
    """

    def __init__(self, capacity: int, forget: Forget = "reservoir") -> None:
        at_least(1, buffer=capacity)
        if forget not in get_args(Forget):
            raise UsageError(f"forget: {forget!r} is none of {', '.join(get_args(Forget))}")
        self.capacity, self.forget = capacity, forget
        self.seen = 0
        self.lessons: list[Lesson] = []

    def __len__(self) -> int:
        return len(self.lessons)

    def __iter__(self) -> Iterator[Lesson]:
        return iter(self.lessons)

    def add(self, lesson: Lesson, generator: torch.Generator) -> None:
        self.seen += 1
        if len(self) < self.capacity:
            self.lessons.append(lesson)
        elif self.forget == "oldest":
            self.lessons = [*self.lessons[1:], lesson]
        elif (place := _below(self.seen, generator)) < self.capacity:
            self.lessons[place] = lesson

    def draw(self, count: int, generator: torch.Generator) -> list[Lesson]:
        """As many different lessons at random, or all there are."""
        order = torch.randperm(len(self), generator=generator)[:count]
        return [self.lessons[i] for i in order.tolist()]

    def state_dict(self) -> dict[str, Any]:
        lessons = [{"learned": list(each.learned), "held_out": each.held_out} for each in self]
        return {"seen": self.seen, "lessons": lessons}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if len(state["lessons"]) > self.capacity:
            raise UsageError(
                f"buffer: {self.capacity} is less than the {len(state['lessons'])} lessons to be loaded"
            )
        self.seen = int(state["seen"])
        self.lessons = [Lesson(tuple(each["learned"]), each["held_out"]) for each in state["lessons"]]


def by_shape(lessons: Sequence[Lesson]) -> list[list[Lesson]]:
    """The same lessons, those together that can run side by side."""
    groups: dict[tuple[torch.Size, ...], list[Lesson]] = {}
    for lesson in lessons:
        groups.setdefault(lesson.shape, []).append(lesson)
    return list(groups.values())


def _below(bound: int, generator: torch.Generator) -> int:
    return int(torch.randint(bound, (), generator=generator))
