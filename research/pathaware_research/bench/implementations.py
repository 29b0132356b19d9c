"""Our implementations that are timed, and the interface that other libraries' implementations share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pathaware.core import VERSION
from pathaware.core.episodes import Episodes
from pathaware.core.execution import captured
from pathaware.core.few_shot import FewShotLearner
from pathaware.engine.compiled import CompiledUnrolled
from pathaware.training.meta_step import meta_step
from pathaware.training.meta_training import build
from pathaware_research.bench.timing import Work
from pathaware_research.bench.workloads import Inputs, Job

RATE = 1e-3
"""The outer learning rate of every implementation."""


class Unavailable(Exception):
    """An implementation is not installed or does not support a job; the message is shown in the table."""


class Implementation(Protocol):
    """Interface of an implementation that can be timed and checked."""

    name: str
    title: str

    def version(self) -> str:
        """The version of the library; raises `Unavailable` if it cannot be imported."""
        ...

    def training(self, job: Job, inputs: Inputs) -> Work:
        """One meta-iteration, including the optimiser's step."""
        ...

    def adaptation(self, job: Job, inputs: Inputs) -> Work:
        """From the support set of a task to an adapted network."""
        ...

    def meta_gradient(self, job: Job, episodes: Episodes) -> Tensor:
        """The meta-gradient of the mean query loss in float64 as one vector, for the network of seed 0."""
        ...

    def predictions(self, job: Job, episodes: Episodes) -> Tensor:
        """The predictions in float64 of the network adapted to the first task, for that task's queries."""
        ...


def flat_gradient(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The `.grad` of all parameters as one vector, zero where there is none."""
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.cat([g.flatten() for g in grads])


class Ours:
    """This package, through the functions that training uses.

    `settings` are settings of `[training]` that differ from the defaults of a run.
    """

    def __init__(self, name: str, title: str, **settings: Any) -> None:
        self.name, self.title, self.settings = name, title, settings

    def version(self) -> str:
        return VERSION

    def training(self, job: Job, inputs: Inputs) -> Work:
        """One meta-iteration, including drawing, gathering and augmenting the images."""
        config = job.config(**self.settings)
        eager = meta_step(config.training, build(config), inputs.source, job.meta_gradient())
        step = captured(eager, config.training.graph and inputs.source.capturable)
        return lambda i: step(inputs.draw(i), RATE)

    def adaptation(self, job: Job, inputs: Inputs) -> Work:
        learner = build(job.config(**self.settings))
        return lambda i: learner.adapt(*inputs.support)

    def meta_gradient(self, job: Job, episodes: Episodes) -> Tensor:
        learner = self._in_float64(job)
        job.meta_gradient().backward(learner, episodes, 1 / len(episodes))
        return flat_gradient(learner.parameters())

    def meta_gradient_as_trained(self, job: Job, episodes: Episodes) -> Tensor:
        """The meta-gradient as a run computes it, in float32 and the job's precision."""
        learner = build(job.config(**self.settings))
        job.meta_gradient().backward(learner, episodes, 1 / len(episodes))
        return flat_gradient(learner.parameters()).double()

    def predictions(self, job: Job, episodes: Episodes) -> Tensor:
        adapted = self._in_float64(job).adapt(episodes.support_x[0], episodes.support_y[0])
        outputs: Tensor = adapted(episodes.query_x[0])
        return outputs.detach()

    def _in_float64(self, job: Job) -> FewShotLearner:
        return build(job.config(**{**self.settings, "dtype": "float64", "precision": "fp32"}))


class Compiled(Ours):
    """This package with the meta-iteration compiled to C++, which is done for small networks on a CPU.

    It is timed only if chosen by name: compiling takes half a minute per row.
    """

    def meta_gradient(self, job: Job, episodes: Episodes) -> Tensor:
        if job.device != "cpu" or episodes.support_x.ndim > 3:
            raise Unavailable("not compiled")
        learner = self._in_float64(job)
        CompiledUnrolled(job.meta_gradient().order).backward(learner, episodes, 1 / len(episodes))
        return flat_gradient(learner.parameters())

    def predictions(self, job: Job, episodes: Episodes) -> Tensor:
        raise Unavailable("not compiled")


ENGINE = Ours("pathaware", "pathaware")
COMPILED = Compiled("compiled", "pathaware, compiled", compile="on")
LOOP = Ours("loop", "sequential loop", execution="loop", graph=False)
