"""Workloads to time: problems of given sizes, and the jobs every implementation is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, Protocol, cast

import torch
from torch import Tensor

from pathaware.core.episodes import Episodes, TaskSource
from pathaware.core.errors import UsageError, did_you_mean
from pathaware.core.meta_gradient import Unrolled
from pathaware.core.path import Order
from pathaware.core.seeding import generator
from pathaware.data.store import ClassSpan, ImageStore, Manifest
from pathaware.training.config import Config, Training
from pathaware.training.problems import Classification, Problem, Sine

CLASSES, IMAGES = 16, 100


class TimedProblem(Problem, Protocol):
    @property
    def sizes(self) -> str:
        """Network and data in one line, for tables and files."""
        ...


@dataclass(frozen=True)
class SyntheticImages(Classification):
    """Few-shot classification of random pixels, which take a network as long as photographs."""

    name: ClassVar[str] = "synthetic"

    size: int = 84
    channels: int = 3

    @property
    def sizes(self) -> str:
        network = f"Conv-4 of {self.width or 64} filters, {self.size}×{self.size}×{self.channels}"
        return f"{network}, {self.ways}-way {self.shots}-shot, {self.queries} queries per class"

    def _store(self) -> ImageStore:
        return noise(self.size, self.channels)


@dataclass(frozen=True)
class TimedSine(Sine):
    """Sine regression, with its sizes for tables."""

    @property
    def sizes(self) -> str:
        return f"MLP 1-40-40-1, {self.shots} points, {self.queries} queries"


@lru_cache(maxsize=4)
def noise(size: int, channels: int) -> ImageStore:
    """Random pixels. Colour images may be mirrored, like photographs; grey ones may not, like characters."""
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


@dataclass(frozen=True)
class Workload:
    """A problem with the number of tasks per meta-iteration, of inner steps, and the inner learning rate.

    Several workloads may share a `group`; `--rows` takes names and groups.
    """

    name: str
    group: str
    problem: TimedProblem
    tasks: int = 4
    steps: int = 5
    rate: float = 0.01

    @property
    def sizes(self) -> str:
        """The workload in one line, for tables and files."""
        return f"{self.problem.sizes}, {self.tasks} tasks, {self.steps} steps"


def _images(size: int, shots: int) -> Workload:
    return Workload(f"images-{size}-{shots}shot", f"images-{size}", SyntheticImages(shots=shots, size=size))


WORKLOADS = (
    Workload("sine", "sine", TimedSine(shots=10), tasks=25),
    Workload("glyphs", "glyphs", SyntheticImages(shots=1, queries=5, width=32, size=28, channels=1)),
    *(_images(size, shots) for size in (32, 84) for shots in (1, 5)),
)
ON_CPU = ("sine", "glyphs")  # two minutes on two cores; an 84×84 meta-iteration takes tens of seconds there
ON_CUDA = ("images-32", "images-84")


def choose(rows: Sequence[str], device: torch.device, *, full: bool = False) -> list[Workload]:
    """The workloads with these names or groups, or those for the device, in the order of `WORKLOADS`."""
    if full and rows:
        raise UsageError("all rows are timed; do not choose rows as well", field="full")
    known = list(dict.fromkeys(name for w in WORKLOADS for name in (w.group, w.name)))
    for row in rows:
        if row not in known:
            hint = did_you_mean(row, known)
            raise UsageError(f"{row!r} must be one of {', '.join(known)}{hint}", field="rows")
    wanted = rows or (ON_CUDA if device.type == "cuda" else ON_CPU)
    return [w for w in WORKLOADS if full or w.name in wanted or w.group in wanted]


What = Literal["training", "adaptation"]
MethodName = Literal["maml", "pamela"]


@dataclass(frozen=True)
class Job:
    """Work to be timed, the same for every implementation.

    `training` is one meta-iteration; `adaptation` adapts to one new task without a graph (order `none`).
    """

    workload: Workload
    what: What
    method: MethodName
    order: Order
    device: str = "cpu"
    precision: str = "tf32"
    threads: int | None = None

    def config(self, **training: Any) -> Config:
        """The configuration of a run of this job, with the given settings of `[training]` replaced."""
        problem, steps = self.workload.problem, self.workload.steps
        rule: dict[str, Any] = {"steps": steps, "rate": self.workload.rate}
        if self.method == "pamela":
            rule["skip"] = min(2, steps)
        settings = {**problem.training_defaults, "tasks": self.workload.tasks, "device": self.device}
        if self.threads is not None:
            settings["threads"] = self.threads
        settings |= {"precision": self.precision, **training}
        return Config(problem, self.method, rule, Training(**settings))

    def meta_gradient(self) -> Unrolled:
        return Unrolled(cast(Literal["second", "first"], self.order))


class Inputs:
    """The tasks of each turn: plans for our engine, which gathers episodes itself; episodes for others."""

    def __init__(self, job: Job) -> None:
        self.tasks = job.workload.tasks
        training, problem = job.config().training, job.workload.problem
        self.source: TaskSource = problem.tasks("train", training.torch_device, training.torch_dtype)
        self.turn(0)

    def draw(self, i: int) -> Any:
        """The plan of turn i, as `TaskSource.draw` returns it."""
        return self.source.draw(self.tasks, generator(0, "bench", i))

    def turn(self, i: int) -> None:
        """Gather the episodes of turn i."""
        self.episodes: Episodes = self.source.gather(self.draw(i))

    @property
    def support(self) -> tuple[Tensor, Tensor]:
        """The support set of one task of this turn."""
        return self.episodes.support_x[0], self.episodes.support_y[0]
