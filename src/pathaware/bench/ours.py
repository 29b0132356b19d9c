"""Our own engine as a contestant: as it trains by default, and as a plain sequential loop."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import pathaware
from pathaware.bench.contestant import Missing, Work, flat_gradient
from pathaware.bench.job import Inputs, Job
from pathaware.few_shot import FewShotLearner
from pathaware.outer.compiled import CompiledUnrolled
from pathaware.tasks.episodes import Episodes
from pathaware.training.trainer import build, in_graph, meta_step

RATE = 1e-3


class Ours:
    """The classes that training uses, so that what is timed is what a run does. `settings` are those of
    `[training]` in which this contestant differs from a run's defaults."""

    def __init__(self, name: str, title: str, **settings: Any) -> None:
        self.name, self.title, self.settings = name, title, settings

    def version(self) -> str:
        return pathaware.__version__

    def training(self, job: Job, inputs: Inputs) -> Work:
        """Drawing, gathering and augmenting the images is timed too."""
        config = job.config(**self.settings)
        step = in_graph(meta_step(config, build(config), inputs.source, job.outer()), config.training.graph)
        return lambda i: step(inputs.draw(i), RATE)

    def adaptation(self, job: Job, inputs: Inputs) -> Work:
        learner = build(job.config(**self.settings))
        return lambda i: learner.adapt(*inputs.support)

    def meta_gradient(self, job: Job, episodes: Episodes) -> Tensor:
        learner = self._exact(job)
        job.outer().backward(learner, episodes, 1 / len(episodes))
        return flat_gradient(learner.parameters())

    def answers(self, job: Job, episodes: Episodes) -> Tensor:
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
        CompiledUnrolled(job.outer().order).backward(learner, episodes, 1 / len(episodes))
        return flat_gradient(learner.parameters())

    def answers(self, job: Job, episodes: Episodes) -> Tensor:
        raise Missing("not compiled")


ENGINE = Ours("pathaware", "pathaware")
COMPILED = Compiled("compiled", "pathaware, compiled", compile="on")
LOOP = Ours("loop", "sequential loop", execution="loop", graph=False)
