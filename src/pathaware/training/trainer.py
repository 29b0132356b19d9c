"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pathaware.learner import MetaLearner
from pathaware.methods import method
from pathaware.outer import Outer, Unrolled
from pathaware.outer.compiled import CompiledUnrolled, has_compiler
from pathaware.seeding import generator
from pathaware.tasks.episodes import TaskSource
from pathaware.training.config import Config, Training
from pathaware.training.evaluation import evaluate
from pathaware.training.histograms import Histograms
from pathaware.training.step import GraphedStep, MetaStep, Outcome
from pathaware.training.watched import WatchedStep

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


def train(
    config: Config,
    report: Callable[[Progress, MetaLearner], None] = lambda progress, learner: None,
    every: int = 100,
    histograms: Histograms | None = None,
) -> MetaLearner:
    """Meta-train from the start; `report` hears of every `every`-th iteration and of the last.

    `histograms` collects what the setting of that name asks for.
    """
    training = config.training
    training.apply()
    learner = build(config)
    source = config.problem.tasks("train", training.torch_device, training.torch_dtype)
    step = meta_step(config, learner, source)
    advance = step if histograms is None else WatchedStep(step, histograms, training.histograms)
    window = _Window()
    for i in range(training.iterations):
        rate = learning_rate(training, i)
        window.add(advance(source.draw(training.tasks, generator(training.seed, "train", i)), rate))
        done = i + 1
        validate = bool(training.validate) and (done % training.validate == 0 or done == training.iterations)
        if done % every == 0 or done == training.iterations or validate:
            validation = _validate(config, learner) if validate else None
            report(window.close(done, rate, validation), learner)
    return learner


def meta_step(
    config: Config, learner: MetaLearner, source: TaskSource, outer: Outer | None = None
) -> MetaStep:
    """A meta-iteration as a run does it: from a CUDA graph if one can be recorded, compiled where it pays."""
    training = config.training
    kind = GraphedStep if training.graph and source.capturable else MetaStep
    estimator = outer or method(config.method).outer()
    if isinstance(estimator, Unrolled) and compiles(training, learner):
        estimator = CompiledUnrolled(estimator.order)
    return kind(learner, estimator, source, rate=training.rate, clip=training.clip, chunk=training.chunk)


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


def _validate(config: Config, learner: MetaLearner) -> float:
    result = evaluate(learner, config.problem, split="val", tasks=config.training.validation_tasks)
    return result.values[:, -1].double().mean().item()


class _Window:
    """Averages over the iterations since the last report, summed where the tensors are."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.outcomes: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        # A replayed graph writes every outcome to the same place.
        self.outcomes.append(Outcome(outcome.losses.clone(), outcome.norm.clone(), outcome.skipped.clone()))

    def close(self, iteration: int, rate: float, validation: float | None) -> Progress:
        losses = torch.stack([o.losses for o in self.outcomes])
        norms = torch.stack([o.norm for o in self.outcomes])
        sound = torch.stack([o.skipped for o in self.outcomes]) == 0
        self.outcomes.clear()
        usable = bool(sound.any())
        return Progress(
            iteration=iteration,
            loss=float(losses[sound].mean()) if usable else math.nan,
            worst=float(losses[sound].max()) if usable else math.nan,
            norm=float(norms[sound].mean()) if usable else math.nan,
            skipped=int((~sound).sum()),
            rate=rate,
            seconds=time.perf_counter() - self.started,
            validation=validation,
            memory_mb=torch.cuda.max_memory_allocated() / 1e6 if losses.is_cuda else None,
        )
