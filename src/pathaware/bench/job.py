"""One thing to time, the same for every contestant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from torch import Tensor

from pathaware.bench.workloads import Workload
from pathaware.outer import Unrolled
from pathaware.path import Order
from pathaware.seeding import generator
from pathaware.tasks.episodes import Episodes, TaskSource
from pathaware.training.config import Config, Training

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

    def outer(self) -> Unrolled:
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
