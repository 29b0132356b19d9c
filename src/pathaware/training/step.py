"""One meta-iteration: gather tasks, adapt, meta-gradient, clip, optimiser."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from pathaware.learner import MetaLearner
from pathaware.outer import Outer
from pathaware.tasks.episodes import TaskSource


@dataclass(frozen=True)
class Outcome:
    """Losses of the tasks `[T]`, norm of the meta-gradient before clipping, and 1 if it was unusable."""

    losses: Tensor
    norm: Tensor
    skipped: Tensor


class MetaStep:
    """Runs a meta-iteration as it is written. Works everywhere."""

    def __init__(
        self,
        learner: MetaLearner,
        outer: Outer,
        source: TaskSource,
        *,
        rate: float,
        clip: float = 0.0,
        chunk: int = 0,
    ) -> None:
        self.learner = learner
        self.outer = outer
        self.source = source
        self.clip = clip or math.inf
        self.chunk = chunk or None
        self.parameters = list(learner.parameters())
        device = self.parameters[0].device
        self.rate = torch.tensor(rate, device=device, dtype=torch.float32)
        self.optimizer: Any = torch.optim.Adam(
            self.parameters, lr=self.rate, fused=True, capturable=device.type == "cuda"
        )

    def __call__(self, plan: Any, rate: float) -> Outcome:
        self.rate.fill_(rate)
        return self.run(plan)

    def run(self, plan: Any) -> Outcome:
        episodes = self.source.gather(plan)
        self.optimizer.zero_grad()
        parts = [
            self.outer.backward(self.learner, chunk, 1 / len(episodes))
            for chunk in episodes.chunks(self.chunk)
        ]
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        # One meta-gradient that is not finite would poison θ₀ for good. The fused optimiser leaves the
        # step out by itself where this flag is up, so no synchronisation is needed to decide.
        skipped = (~norm.isfinite()).float()
        self.optimizer.found_inf = skipped
        self.optimizer.step()
        return Outcome(torch.cat(parts), norm.detach(), skipped)


class GraphedStep(MetaStep):
    """The same meta-iteration recorded in a CUDA graph and replayed: no launch cost, same numbers.

    A graph is for one set of shapes; a plan of other shapes records a new one.
    """

    graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, plan: Any, rate: float) -> Outcome:
        self.rate.fill_(rate)
        if self.graph is None or _shapes(plan) != _shapes(self.plan):
            self._capture(plan)
            assert self.graph is not None
        for name, value in _tensors(plan):
            getattr(self.plan, name).copy_(value, non_blocking=True)
        self.graph.replay()
        return self.outcome

    def _capture(self, plan: Any) -> None:
        """Record one iteration. The warm-up it needs must leave no trace in parameters and optimiser."""
        device = self.rate.device
        self.graph = None  # its memory can be used again
        self.plan = plan.to(device)
        kept = [p.detach().clone() for p in self.parameters]
        states = {p: {k: v.clone() for k, v in state.items()} for p, state in self.optimizer.state.items()}
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(3):
                self.run(self.plan)
            with torch.no_grad():
                for parameter, value in zip(self.parameters, kept, strict=True):
                    parameter.copy_(value)
            for parameter, state in self.optimizer.state.items():
                before = states.get(parameter, {})
                for name, value in state.items():
                    value.copy_(before[name]) if name in before else value.zero_()
        torch.cuda.current_stream(device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outcome = self.run(self.plan)


def _tensors(plan: Any) -> list[tuple[str, Tensor]]:
    pairs = [(f.name, getattr(plan, f.name)) for f in fields(plan)]
    return [(name, value) for name, value in pairs if value is not None]


def _shapes(plan: Any) -> list[tuple[str, torch.Size]]:
    return [(name, value.shape) for name, value in _tensors(plan)]
