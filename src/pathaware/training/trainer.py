"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pathaware.learner import MetaLearner
from pathaware.methods import method
from pathaware.outer import Outer, Unrolled
from pathaware.outer.compiled import CompiledUnrolled, has_compiler
from pathaware.seeding import generator
from pathaware.tasks.episodes import TaskSource
from pathaware.training.config import Config, Training
from pathaware.training.distribution import ALONE, World
from pathaware.training.evaluation import evaluate
from pathaware.training.graphed import Graphed
from pathaware.training.histograms import Histograms
from pathaware.training.pretraining import start_pretrained
from pathaware.training.state import State
from pathaware.training.step import MetaStep, Outcome
from pathaware.training.watched import WatchedStep, watched_tensor

WORTH_COMPILING = 100_000
"""Iterations from which `compile = "auto"` compiles: about 2 ms saved by each, against 30 to 40 s once."""


@dataclass(frozen=True)
class Progress:
    """What a run says of itself while it trains: averages since it last spoke.

    `loss` is the meta-loss and `worst` that of the worst task, `norm` the meta-gradient's before it was
    clipped, `skipped` counts meta-gradients that were not finite. `validation` is the metric on new
    tasks of the validation split, where it was taken; `memory_mb` the most a GPU has held so far.
    """

    iteration: int
    loss: float
    worst: float
    norm: float
    skipped: int
    rate: float
    seconds: float
    validation: float | None = None
    memory_mb: float | None = None


def build(config: Config, device: torch.device | None = None) -> MetaLearner:
    """The learner a configuration describes, at its start: a pure function of the seed."""
    training = config.training
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        model = config.problem.model()
        rule = method(config.method).build(model, config.rule)
    learner = MetaLearner(
        model,
        rule,
        config.problem.loss,
        execution=training.execution,
        guard=training.guard,
        checkpoint=training.checkpoint,
    )
    return learner.to(device or training.torch_device, training.torch_dtype)


class Trainer:
    """Meta-training, one iteration at a time, from the start or from a saved state.

    >>> trainer = Trainer(config)                                     # doctest: +SKIP
    >>> while not trainer.done:                                       # doctest: +SKIP
    ...     progress = trainer.advance()

    What an iteration does depends on the configuration, the state and its number, and on nothing else:
    a run that was stopped and restored goes on as if it had not been. The processes of a `world` share the
    tasks out and go on from the writer's state; how many they are changes roundings only.
    """

    def __init__(
        self,
        config: Config,
        state: State | None = None,
        every: int = 100,
        histograms: Histograms | None = None,
        world: World = ALONE,
    ) -> None:
        self.config, self.every, self.world = config, every, world
        training = config.training
        training.apply()
        self.learner = build(config)
        state = world.from_writer(lambda: state)
        self.source = config.problem.tasks("train", training.torch_device, training.torch_dtype)
        if state is None and training.pretrain:
            start_pretrained(self.learner.model, config)
        self.meta = meta_step(config, self.learner, self.source, world=world)
        self.iteration = 0
        if state is not None:
            self.iteration = state.iteration
            state.restore(self.learner, self.meta.optimizer)
        # Each has computed its start itself, but not every GPU rounds alike, least of all in pretraining.
        world.equalise(self.meta.parameters)
        self.step: Callable[[Any, float], Outcome] = in_graph(self.meta, training.graph)
        self.histograms = histograms
        if training.histograms:
            self.histograms = histograms or Histograms(watched_tensor(self.learner))
            self.step = WatchedStep(
                self.meta, self.histograms, training.histograms, run=self.step, iteration=self.iteration
            )
        self.window = _Window(state.seconds if state else 0.0, world)

    @property
    def done(self) -> bool:
        return self.iteration >= self.config.training.iterations

    def advance(self) -> Progress | None:
        """One meta-iteration; a report after every `every`-th, after validations and after the last."""
        training = self.config.training
        rate = learning_rate(training, self.iteration)
        plan = self.source.draw(training.tasks, generator(training.seed, "train", self.iteration))
        self.window.add(self.step(plan, rate))
        self.iteration += 1
        validate = bool(training.validate) and (self.done or self.iteration % training.validate == 0)
        if not (self.done or validate or self.iteration % self.every == 0):
            return None
        validation = _validate(self.config, self.learner, self.world) if validate else None
        return self.window.close(self.iteration, rate, validation)

    def state(self) -> State:
        return State.of(self.learner, self.meta.optimizer, self.iteration, self.window.seconds)


def train(
    config: Config,
    report: Callable[[Progress, MetaLearner], None] = lambda progress, learner: None,
    every: int = 100,
) -> MetaLearner:
    """Meta-train from the start; `report` hears of every `every`-th iteration and of the last."""
    trainer = Trainer(config, every=every)
    while not trainer.done:
        progress = trainer.advance()
        if progress:
            report(progress, trainer.learner)
    return trainer.learner


def meta_step(
    config: Config,
    learner: MetaLearner,
    source: TaskSource,
    outer: Outer | None = None,
    world: World = ALONE,
) -> MetaStep:
    """A meta-iteration as a run does it, compiled where it pays."""
    training = config.training
    estimator = outer or method(config.method).outer()
    if isinstance(estimator, Unrolled) and compiles(training, learner):
        estimator = CompiledUnrolled(estimator.order)
    return MetaStep(
        learner,
        estimator,
        source,
        rate=training.rate,
        clip=training.clip,
        chunk=training.chunk,
        world=world,
    )


def in_graph(step: MetaStep, wanted: bool = True) -> MetaStep | Graphed[Outcome]:
    """The step from a CUDA graph, if one can be recorded."""
    return Graphed(step) if wanted and step.source.capturable else step


def compiles(training: Training, learner: MetaLearner) -> bool:
    """Whether to compile the meta-iteration. `auto` decides by what a run is and never by the clock, so that
    a run is the same whenever it is repeated; convolutions take longer to compile than most runs last."""
    if training.compile != "auto" or training.torch_device.type != "cpu":
        return training.compile == "on" and training.torch_device.type == "cpu"
    program = learner.execution.program
    small = program is not None and not program.images
    return small and training.iterations >= WORTH_COMPILING and has_compiler()


def learning_rate(training: Training, iteration: int) -> float:
    """Adam's rate at an iteration: constant, or half a cosine from `rate` down to nothing."""
    if training.schedule == "constant":
        return training.rate
    return training.rate * 0.5 * (1 + math.cos(math.pi * iteration / training.iterations))


def _validate(config: Config, learner: MetaLearner, world: World) -> float:
    tasks = config.training.validation_tasks
    result = evaluate(learner, config.problem, split="val", tasks=tasks, world=world)
    return result.values[:, -1].double().mean().item()


class _Window:
    """Averages over the iterations since the last report, summed where the tensors are."""

    def __init__(self, seconds: float = 0.0, world: World = ALONE) -> None:
        self.world = world
        self.started = time.perf_counter() - seconds
        self.outcomes: list[Outcome] = []

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def add(self, outcome: Outcome) -> None:
        # A replayed graph writes every outcome to the same place.
        self.outcomes.append(Outcome(outcome.losses.clone(), outcome.norm.clone(), outcome.skipped.clone()))

    def close(self, iteration: int, rate: float, validation: float | None) -> Progress:
        losses = self.world.gather([torch.stack([o.losses for o in self.outcomes], dim=1)]).T
        norms = torch.stack([o.norm for o in self.outcomes]).to(losses.device)
        sound = (torch.stack([o.skipped for o in self.outcomes]) == 0).to(losses.device)
        on_gpu = self.outcomes[0].norm.is_cuda
        self.outcomes.clear()
        usable = bool(sound.any())
        return Progress(
            iteration=iteration,
            loss=float(losses[sound].mean()) if usable else math.nan,
            worst=float(losses[sound].max()) if usable else math.nan,
            norm=float(norms[sound].mean()) if usable else math.nan,
            skipped=int((~sound).sum()),
            rate=rate,
            seconds=self.seconds,
            validation=validation,
            memory_mb=torch.cuda.max_memory_allocated() / 1e6 if on_gpu else None,
        )
