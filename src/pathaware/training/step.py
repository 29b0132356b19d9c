"""One meta-iteration: gather tasks, adapt, meta-gradient, sum over processes, clip, optimiser."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathaware.few_shot import FewShotLearner
from pathaware.outer import Outer
from pathaware.tasks.episodes import TaskSource
from pathaware.training.distribution import ALONE, World


@dataclass(frozen=True)
class Outcome:
    """Losses of this process's tasks `[T]`, norm of the whole meta-gradient before clipping, and 1 if it was
    unusable."""

    losses: Tensor
    norm: Tensor
    skipped: Tensor


class MetaStep:
    """Runs a meta-iteration as it is written. Works everywhere."""

    def __init__(
        self,
        learner: FewShotLearner,
        outer: Outer,
        source: TaskSource,
        *,
        rate: float,
        clip: float = 0.0,
        chunk: int = 0,
        world: World = ALONE,
    ) -> None:
        self.learner = learner
        self.outer = outer
        self.source = source
        self.world = world
        self.clip = clip or math.inf
        self.chunk = chunk or None
        self.parameters: list[Tensor] = list(learner.parameters())
        device = self.parameters[0].device
        self.rate = torch.tensor(rate, device=device, dtype=torch.float32)
        self.optimizer: Any = torch.optim.Adam(
            self.parameters, lr=self.rate, fused=True, capturable=device.type == "cuda"
        )

    def __call__(self, plan: Any, rate: float) -> Outcome:
        self.rate.fill_(rate)
        return self.run(plan)

    def run(self, plan: Any) -> Outcome:
        episodes = self.source.gather(self.world.share(plan))
        self.optimizer.zero_grad()
        # Weighted by the number of all tasks, so that the sum over processes is the mean over tasks.
        parts = [
            self.outer.backward(self.learner, chunk, 1 / len(plan)) for chunk in episodes.chunks(self.chunk)
        ]
        self.world.sum_gradients(self.parameters)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        # One meta-gradient that is not finite would poison θ₀ for good. The fused optimiser leaves the
        # step out by itself where this flag is up, so no synchronisation is needed to decide.
        skipped = (~norm.isfinite()).float()
        self.optimizer.found_inf = skipped
        self.optimizer.step()
        return Outcome(torch.cat(parts) if parts else norm.new_empty(0), norm.detach(), skipped)
