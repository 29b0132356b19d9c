"""`fit`: meta-train a learner on any tasks, in a script and without a run folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import nn

from pathaware.core.episodes import Episodes, TaskSource
from pathaware.core.errors import RunError, UsageError
from pathaware.core.few_shot import FewShotLearner, check_kind
from pathaware.core.seeding import generator, seed_all
from pathaware.core.settings import at_least
from pathaware.training.config import Training
from pathaware.training.distributed import ALONE, World
from pathaware.training.loop import QUIET, Fit, MakeDisplay, Objective
from pathaware.training.meta_step import MetaStep, meta_step
from pathaware.training.progress import Progress

Schedule = Literal["constant", "cosine"]


class Fitting(Objective):
    """Meta-training of a learner on tasks: how it learns θ₀ and Φ."""

    title = "meta-training"
    advice = "lower training.rate or method.rate, or set training.clip=1 or training.guard=true"
    step: MetaStep

    def __init__(
        self, learner: FewShotLearner, source: TaskSource, training: Training, world: World = ALONE
    ) -> None:
        self.learner, self.source, self.training, self.world = learner, source, training, world
        self.steps, self.log_every = training.iterations, log_interval(training)
        self.device = next(learner.parameters()).device
        self.capturable = training.graph and source.capturable

    def prepare(self, *, new: bool) -> MetaStep:
        self.step = meta_step(self.training, self.learner, self.source, world=self.world)
        return self.step

    @property
    def kept(self) -> dict[str, nn.Module]:
        return {"learner": self.learner}

    def schedule(self, iteration: int) -> tuple[float, bool]:
        stale = self.step.estimator.on_progress(iteration / self.steps, self.learner)
        return learning_rate(self.training, iteration), self.step.execution_changed() or stale

    def plan(self, iteration: int) -> Any:
        return self.source.draw(self.training.tasks, generator(self.training.seed, "train", iteration))

    def noise(self, iteration: int) -> None:
        rank = self.world.rank  # every rank draws its own
        seed_all(self.training.seed, "noise", iteration, *([rank] if rank else []))

    def save_memory(self) -> None:
        """Use smaller chunks of tasks, then recompute inner steps. Both change the speed only."""
        training, step = self.training, self.step
        at_once = step.chunk or training.tasks
        if not training.fit_memory or (at_once == 1 and self.learner.checkpoint):
            raise RunError(
                f"out of memory with {at_once} tasks side by side: training.chunk=1 and "
                "training.checkpoint=true take less and change no number; training.fit_memory=true sets them "
                "when needed"
            )
        if at_once > 1:
            step.chunk = (at_once + 1) // 2
        else:
            self.learner.checkpoint = True


def log_interval(training: Training) -> int:
    """Iterations between log entries: a hundred entries of a short run, and more of a long one."""
    return max(1, min(100, training.iterations // 100))


def learning_rate(training: Training, iteration: int) -> float:
    """Adam's learning rate at an iteration: constant, or half a cosine from `rate` to zero; both grow
    linearly for the first `warmup` iterations."""
    rate = training.rate * min(1.0, (iteration + 1) / max(1, training.warmup))
    if training.schedule == "constant":
        return rate
    return rate * 0.5 * (1 + math.cos(math.pi * iteration / training.iterations))


class GivenTasks(TaskSource):
    """Episodes from an iterable, from its beginning again whenever it ends."""

    def __init__(self, episodes: Iterable[Episodes], like: torch.Tensor) -> None:
        self.episodes, self.like = episodes, like
        self.rest: Iterator[Episodes] = iter(episodes)

    def draw(self, tasks: int, generator: torch.Generator) -> Episodes:
        found = next(self.rest, None)
        if found is None:
            self.rest = iter(self.episodes)
            found = next(self.rest, None)
        if found is None:
            raise UsageError(
                "they ended; give an iterable that can begin again, such as a list or a DataLoader",
                field="tasks",
            )
        check_kind(found, Episodes, "tasks")
        return found

    def gather(self, plan: Episodes) -> Episodes:
        return plan.to(self.like.device, self.like.dtype, non_blocking=True)


def fit(
    learner: FewShotLearner,
    tasks: TaskSource | Iterable[Episodes],
    iterations: int,
    *,
    batch: int = 4,
    learning_rate: float = 1e-3,
    schedule: Schedule = "constant",
    warmup: int = 0,
    clip: float = 0.0,
    seed: int = 0,
    callbacks: Sequence[Callable[[Progress], object]] = (),
    display: MakeDisplay = QUIET,
) -> list[Progress]:
    """Meta-train a learner in place by Adam, and return the log.

    >>> import torch, pathaware
    >>> from pathaware.data import SineWaves
    >>> learner = pathaware.maml(pathaware.models.mlp(), torch.nn.functional.mse_loss)
    >>> log = pathaware.fit(learner, SineWaves(shots=10), 20, batch=25)
    >>> log[-1].iteration, log[-1].loss < 10
    (20, True)

    - `tasks`: a data set of ours, from which `batch` tasks are drawn in each iteration, or an iterable of
      `Episodes`, such as a `DataLoader`, each a batch.
    - `learning_rate`: of Adam, constant or falling to zero by half a cosine (`schedule`), after `warmup`
      iterations in which it grows.
    - `clip`: the largest norm of the meta-gradient; 0 for no limit.
    - `callbacks`: called with each entry of the log, about a hundred times, for example to evaluate.
    - `display=ProgressDisplay` shows progress.

    It is the loop of `pathaware train`, which adds a folder, validation and resuming. The tasks of a data set
    depend on `seed` alone.
    """
    at_least(1, iterations=iterations, batch=batch)
    check_kind(learner, FewShotLearner, "learner")
    source = tasks if isinstance(tasks, TaskSource) else GivenTasks(tasks, next(learner.parameters()))
    training = Training(
        iterations=iterations,
        tasks=batch,
        rate=learning_rate,
        schedule=schedule,
        warmup=warmup,
        clip=clip,
        seed=seed,
        fit_memory=True,
    )
    log = []
    with Fit(Fitting(learner, source, training), display=display) as steps:
        while not steps.done:
            if (progress := steps.advance()) is not None:
                log.append(progress)
                for callback in callbacks:
                    callback(progress)
    return log
