"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pathaware.learner import MetaLearner
from pathaware.methods import method
from pathaware.seeding import generator
from pathaware.training.config import Config, Training


@dataclass(frozen=True)
class Progress:
    """What a run says of itself while it trains: averages since it last spoke.

    `loss` is the meta-loss and `worst` that of the worst task, `norm` the meta-gradient's before it was
    clipped, `skipped` counts meta-gradients that were not finite.
    """

    iteration: int
    loss: float
    worst: float
    norm: float
    skipped: int
    rate: float
    seconds: float


def build(config: Config) -> MetaLearner:
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
    return learner.to(training.device, getattr(torch, training.dtype))


def train(
    config: Config,
    report: Callable[[Progress], None] = lambda progress: None,
    every: int = 100,
) -> MetaLearner:
    """Meta-train from the start; `report` hears of every `every`-th iteration and of the last."""
    training = config.training
    torch.set_num_threads(training.threads)
    learner = build(config)
    outer = method(config.method).outer()
    source = config.problem.training_tasks()
    parameters = list(learner.parameters())
    optimizer = torch.optim.Adam(parameters, lr=training.rate, fused=True)
    dtype = getattr(torch, training.dtype)
    window = _Window()
    for i in range(training.iterations):
        episodes = source.sample(training.tasks, generator(training.seed, "train", i))
        episodes = episodes.to(training.device, dtype)
        optimizer.zero_grad()
        losses = torch.cat(
            [
                outer.backward(learner, chunk, 1 / training.tasks)
                for chunk in episodes.chunks(training.chunk or None)
            ]
        )
        norm = torch.nn.utils.clip_grad_norm_(parameters, training.clip or math.inf)
        optimizer.param_groups[0]["lr"] = rate = learning_rate(training, i)
        # One bad meta-gradient would poison θ₀ for good: leave it out, and count it.
        sound = bool(norm.isfinite())
        if sound:
            optimizer.step()
        window.add(losses, norm, sound)
        if (i + 1) % every == 0 or i + 1 == training.iterations:
            report(window.close(i + 1, rate))
    return learner


def learning_rate(training: Training, iteration: int) -> float:
    """Adam's rate at an iteration: constant, or half a cosine from `rate` down to nothing."""
    if training.schedule == "constant":
        return training.rate
    return training.rate * 0.5 * (1 + math.cos(math.pi * iteration / training.iterations))


class _Window:
    """Averages over the iterations since the last report."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.clear()

    def clear(self) -> None:
        self.count = self.skipped = 0
        self.loss = self.worst = self.norm = 0.0

    def add(self, losses: Tensor, norm: Tensor, sound: bool) -> None:
        self.count += 1
        if not sound:
            self.skipped += 1
            return
        self.loss += float(losses.mean())
        self.worst = max(self.worst, float(losses.max()))
        self.norm += float(norm)

    def close(self, iteration: int, rate: float) -> Progress:
        sound = max(self.count - self.skipped, 1)
        progress = Progress(
            iteration,
            self.loss / sound,
            self.worst,
            self.norm / sound,
            self.skipped,
            rate,
            time.perf_counter() - self.started,
        )
        self.clear()
        return progress
