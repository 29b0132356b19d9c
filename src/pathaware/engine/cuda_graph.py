"""Steps recorded in a CUDA graph and replayed: no launch cost, same numbers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result", covariant=True)


class Step(Protocol[Result]):
    """An optimiser step on the tasks or images of a plan."""

    parameters: list[Tensor]
    rate: Tensor
    optimizer: Any

    def __call__(self, plan: Any, rate: float) -> Result: ...

    def run(self, plan: Any) -> Result: ...


class CapturedStep(Generic[Result]):
    """Runs another step from a recording of it.

    A graph is for one set of shapes; a plan of other shapes records a new one.
    """

    def __init__(self, step: Step[Result]) -> None:
        self.step = step
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, plan: Any, rate: float) -> Result:
        self.step.rate.fill_(rate)
        if self.graph is None or _shapes(plan) != _shapes(self.plan):
            self._capture(plan)
            assert self.graph is not None
        for name, value in _tensors(plan):
            getattr(self.plan, name).copy_(value, non_blocking=True)
        self.graph.replay()
        return self.outcome

    def forget(self) -> None:
        """Give back the recording's memory; the next call records again."""
        self.graph = None

    def _capture(self, plan: Any) -> None:
        """Record one iteration. The warm-up it needs must leave no trace in parameters, optimiser
        and random state."""
        step, device = self.step, self.step.rate.device
        self.graph = None  # its memory can be used again
        self.plan = plan.to(device)
        kept = [p.detach().clone() for p in step.parameters]
        states = {p: {k: v.clone() for k, v in state.items()} for p, state in step.optimizer.state.items()}
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            with torch.random.fork_rng([device]):
                for _ in range(3):
                    step.run(self.plan)
            with torch.no_grad():
                for parameter, value in zip(step.parameters, kept, strict=True):
                    parameter.copy_(value)
            for parameter, state in step.optimizer.state.items():
                before = states.get(parameter, {})
                for name, value in state.items():
                    value.copy_(before[name]) if name in before else value.zero_()
        torch.cuda.current_stream(device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outcome = step.run(self.plan)


def _tensors(plan: Any) -> list[tuple[str, Tensor]]:
    pairs = [(f.name, getattr(plan, f.name)) for f in fields(plan)]
    return [(name, value) for name, value in pairs if value is not None]


def _shapes(plan: Any) -> list[tuple[str, torch.Size]]:
    return [(name, value.shape) for name, value in _tensors(plan)]
