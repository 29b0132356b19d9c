"""Images of noise, in memory: a network takes as long over them as over photographs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from pathaware.core.episodes import Episodes, TaskSource
from pathaware.core.errors import UsageError
from pathaware.core.meta_gradient import Unrolled
from pathaware.core.path import Order
from pathaware.core.seeding import generator
from pathaware.data.store import ClassSpan, ImageStore, Manifest
from pathaware.training.config import Config, Training
from pathaware.training.problems import Classification, Problem, Sine

CLASSES, IMAGES = 16, 100


@dataclass(frozen=True)
class SyntheticImages(Classification):
    """Few-shot classification in every respect but one: there is nothing to be learned from the pixels."""

    name: ClassVar[str] = "synthetic"

    size: int = 84
    channels: int = 3

    def _store(self) -> ImageStore:
        return noise(self.size, self.channels)


@lru_cache(maxsize=4)
def noise(size: int, channels: int) -> ImageStore:
    """Random pixels; colour images may be mirrored, as photographs may, and grey ones not, as characters."""
    shape = (channels, size, size)
    spans = (ClassSpan(f"class {i}", "train", i * IMAGES, IMAGES) for i in range(CLASSES))
    manifest = Manifest(
        name="noise",
        shape=shape,
        classes=tuple(spans),
        mean=(0.5,) * channels,
        std=(0.29,) * channels,
        mirror=channels > 1,
        sha256="",
        source="random pixels",
    )
    draws = generator(0, "noise", size, channels)
    pixels = torch.randint(256, (CLASSES * IMAGES, *shape), dtype=torch.uint8, generator=draws)
    return ImageStore(manifest, pixels)


# What is timed: the problems by name, and which of them a machine is given unless told otherwise.


@dataclass(frozen=True)
class Workload:
    """A problem with the number of tasks of a meta-iteration, of inner steps, and the inner rate.

    `group` is a name that several may share: `--rows` takes either.
    """

    name: str
    group: str
    problem: Problem
    tasks: int = 4
    steps: int = 5
    rate: float = 0.01

    @property
    def sizes(self) -> str:
        """The problem in a line, for tables and files."""
        p = self.problem
        rest = f"{self.tasks} tasks, {self.steps} steps"
        if isinstance(p, SyntheticImages):
            network = f"Conv-4 of {p.width or 64} filters, {p.size}×{p.size}×{p.channels}"
            return f"{network}, {p.ways}-way {p.shots}-shot, {p.queries} queries a class, {rest}"
        assert isinstance(p, Sine)
        return f"MLP 1-40-40-1, {p.shots} points, {p.queries} queries, {rest}"


def _images(size: int, shots: int) -> Workload:
    return Workload(f"images-{size}-{shots}shot", f"images-{size}", SyntheticImages(shots=shots, size=size))


WORKLOADS = (
    Workload("sine", "sine", Sine(shots=10), tasks=25),
    Workload("glyphs", "glyphs", SyntheticImages(shots=1, queries=5, width=32, size=28, channels=1)),
    *(_images(size, shots) for size in (32, 84) for shots in (1, 5)),
)
ON_CPU = ("sine", "glyphs")  # two minutes on two cores; an 84×84 meta-iteration takes tens of seconds there
ON_CUDA = ("images-32", "images-84")


def choose(rows: Sequence[str], device: torch.device, *, full: bool = False) -> list[Workload]:
    """The workloads asked for by their own name or their group's, in the order of the list above."""
    if full and rows:
        raise UsageError("it means all rows; leave out --rows", field="full")
    known = list(dict.fromkeys(name for w in WORKLOADS for name in (w.group, w.name)))
    for row in rows:
        if row not in known:
            raise UsageError(f"{row!r} is none of {', '.join(known)}", field="rows")
    wanted = rows or (ON_CUDA if device.type == "cuda" else ON_CPU)
    return [w for w in WORKLOADS if full or w.name in wanted or w.group in wanted]


# One thing to time, the same for every contestant.


What = Literal["training", "adaptation"]
MethodName = Literal["maml", "pamela"]


@dataclass(frozen=True)
class Job:
    """`training` is a whole meta-iteration; `adaptation` takes one new task to an adapted network, without
    a graph (order `none`)."""

    workload: Workload
    what: What
    method: MethodName
    order: Order
    device: str = "cpu"
    precision: str = "tf32"
    threads: int | None = None

    def config(self, **training: Any) -> Config:
        """As a run of this would be configured, but for the settings given."""
        problem, steps = self.workload.problem, self.workload.steps
        rule: dict[str, Any] = {"steps": steps, "rate": self.workload.rate}
        if self.method == "pamela":
            rule["skip"] = min(2, steps)
        settings = {**problem.training, "tasks": self.workload.tasks, "device": self.device}
        if self.threads is not None:
            settings["threads"] = self.threads
        return Config(
            problem, self.method, rule, Training(**{**settings, "precision": self.precision, **training})
        )

    def meta_gradient(self) -> Unrolled:
        return Unrolled(cast(Literal["second", "first"], self.order))


class Inputs:
    """The tasks of each turn: drawn by those who train for themselves, gathered beforehand for the others."""

    def __init__(self, job: Job) -> None:
        self.tasks = job.workload.tasks
        training = job.config().training
        self.source: TaskSource = job.workload.problem.tasks(
            "train", training.torch_device, training.torch_dtype
        )
        self.turn(0)

    def draw(self, i: int) -> Any:
        return self.source.draw(self.tasks, generator(0, "bench", i))

    def turn(self, i: int) -> None:
        self.episodes: Episodes = self.source.gather(self.draw(i))

    @property
    def support(self) -> tuple[Tensor, Tensor]:
        """One task of this turn, to adapt to."""
        return self.episodes.support_x[0], self.episodes.support_y[0]
