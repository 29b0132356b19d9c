"""Streams of data sets: each has items to learn one after another, and test examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pathaware.core.episodes import TaskSource
from pathaware.core.errors import UsageError, did_you_mean
from pathaware.core.seeding import generator, seed_all
from pathaware.core.settings import at_least
from pathaware.online.buffer import Item
from pathaware.training.problems import Classification, Problem, Sine


@dataclass(frozen=True)
class DataSet:
    """`items` to learn, in order, and `test` examples, all of one task."""

    items: tuple[Item, ...]
    test: Item


@dataclass(frozen=True)
class Stream:
    """Data sets of a problem, each with `items` items of `size` examples; a pure function of the seed."""

    name: str
    problem: Problem
    items: int
    size: int
    split: str
    source: TaskSource = field(repr=False)

    def data_set(self, seed: int, position: int, purpose: str = "race") -> DataSet:
        """The data set at a position of the stream, independent of the others.

        Streams for different purposes, such as `validation`, are different; `race` is the test stream.
        """
        drawn = self.source.sample(1, generator(seed, "online", purpose, position))
        parts = [tensor[0].split(self.size) for tensor in (drawn.support_x, drawn.support_y)]
        return DataSet(tuple(zip(*parts, strict=True)), (drawn.query_x[0], drawn.query_y[0]))

    def data_sets(self, seed: int, count: int, purpose: str = "race") -> Iterator[DataSet]:
        return (self.data_set(seed, position, purpose) for position in range(count))

    def network(self, seed: int, number: int = 0) -> nn.Module:
        """A newly initialised network: number 0 is the one that all learners start with."""
        with torch.random.fork_rng():
            seed_all(seed, "online", "start", number)
            return self.problem.model()

    @property
    def metric(self) -> str:
        return self.problem.metric.name if self.problem.regression else "error rate"

    def error(self, outputs: Tensor, targets: Tensor) -> float:
        """The squared error, or the fraction of wrong predictions; lower is better."""
        value = float(self.problem.measure(outputs[None], targets[None]))
        return value if self.problem.regression else 1 - value

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "items": self.items, "size": self.size, "split": self.split}


def sine_stream(items: int = 12, size: int = 5) -> Stream:
    """Sine waves, `size` points per item; tested on a grid over the whole domain."""
    at_least(1, items=items, size=size)
    problem = Sine(shots=items * size, points=200)
    return Stream(
        "sine", problem, items, size, "all", problem.tasks("test", "cpu", torch.get_default_dtype())
    )


def glyph_stream(items: int = 8, ways: int = 5, *, width: int = 16, split: str = "train") -> Stream:
    """Tasks of `ways` characters with random labels; an item has one example of each."""
    at_least(1, items=items)
    problem = Classification(data="glyphs", ways=ways, shots=items, queries=10, width=width, augment=False)
    source = problem.tasks(split, "cpu", torch.get_default_dtype())
    source.shuffle = False  # shot by shot, so that an item, `ways` consecutive examples, has every class once
    return Stream("glyphs", problem, items, ways, split, source)


STREAMS: dict[str, Callable[..., Stream]] = {"sine": sine_stream, "glyphs": glyph_stream}


def open_stream(name: str, items: int | None = None) -> Stream:
    if name not in STREAMS:
        hint = did_you_mean(name, STREAMS)
        raise UsageError(f"stream: {name!r} must be one of {', '.join(STREAMS)}{hint}")
    return STREAMS[name]() if items is None else STREAMS[name](items)
