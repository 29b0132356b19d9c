"""What a contestant must be able to do to be timed and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pathaware.core import VERSION
from pathaware.core.episodes import Episodes
from pathaware.core.learner import FewShotLearner
from pathaware.engine.compiled import CompiledUnrolled
from pathaware.experiments.bench.workloads import Inputs, Job
from pathaware.training.trainer import build, captured, meta_step

Work = Callable[[int], object]
"""Runs turn i."""


class Missing(Exception):
    """A contestant is not here, or does not offer what a job asks for; the text is for the table."""


class Contestant(Protocol):
    name: str
    title: str

    def version(self) -> str:
        """Of the library; raises `Missing` where it cannot be imported."""
        ...

    def training(self, job: Job, inputs: Inputs) -> Work:
        """A whole meta-iteration, optimiser and all."""
        ...

    def adaptation(self, job: Job, inputs: Inputs) -> Work:
        """From the support set of a task to a network that knows it."""
        ...

    def meta_gradient(self, job: Job, episodes: Episodes) -> Tensor:
        """Of the mean query loss in float64, from the start that seed 0 gives, as one vector."""
        ...

    def predictions_per_step(self, job: Job, episodes: Episodes) -> Tensor:
        """What the network adapted to the first task says of that task's queries, in float64."""
        ...


def flat_gradient(parameters: Iterable[nn.Parameter]) -> Tensor:
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return torch.cat([g.flatten() for g in grads])


# Our own engine as a contestant: as it trains by default, and as a plain sequential loop.


RATE = 1e-3


class Ours:
    """The classes that training uses, so that what is timed is what a run does. `settings` are those of
    `[training]` in which this contestant differs from a run's defaults."""

    def __init__(self, name: str, title: str, **settings: Any) -> None:
        self.name, self.title, self.settings = name, title, settings

    def version(self) -> str:
        return VERSION

    def training(self, job: Job, inputs: Inputs) -> Work:
        """Drawing, gathering and augmenting the images is timed too."""
        config = job.config(**self.settings)
        step = captured(
            meta_step(config, build(config), inputs.source, job.meta_gradient()), config.training.graph
        )
        return lambda i: step(inputs.draw(i), RATE)

    def adaptation(self, job: Job, inputs: Inputs) -> Work:
        learner = build(job.config(**self.settings))
        return lambda i: learner.adapt(*inputs.support)

    def meta_gradient(self, job: Job, episodes: Episodes) -> Tensor:
        learner = self._exact(job)
        job.meta_gradient().backward(learner, episodes, 1 / len(episodes))
        return flat_gradient(learner.parameters())

    def predictions_per_step(self, job: Job, episodes: Episodes) -> Tensor:
        adapted = self._exact(job).adapt(episodes.support_x[0], episodes.support_y[0])
        answers: Tensor = adapted(episodes.query_x[0])
        return answers.detach()

    def _exact(self, job: Job) -> FewShotLearner:
        return build(job.config(**{**self.settings, "dtype": "float64", "precision": "fp32"}))


class Compiled(Ours):
    """Our engine with its meta-iteration compiled to C++, which is done for small networks on a CPU.

    It takes part only if asked for by name: compiling takes half a minute for each row.
    """

    def meta_gradient(self, job: Job, episodes: Episodes) -> Tensor:
        if job.device != "cpu" or episodes.support_x.ndim > 3:
            raise Missing("not compiled")
        learner = self._exact(job)
        CompiledUnrolled(job.meta_gradient().order).backward(learner, episodes, 1 / len(episodes))
        return flat_gradient(learner.parameters())

    def predictions_per_step(self, job: Job, episodes: Episodes) -> Tensor:
        raise Missing("not compiled")


ENGINE = Ours("pathaware", "pathaware")
COMPILED = Compiled("compiled", "pathaware, compiled", compile="on")
LOOP = Ours("loop", "sequential loop", execution="loop", graph=False)
