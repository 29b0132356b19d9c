"""Capture optimiser steps in a CUDA graph and replay them: no launch cost, same numbers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

Output = TypeVar("Output", covariant=True)


class CapturableStep(Protocol[Output]):
    """An optimiser step on the tasks or images that a plan selects.

    `step(plan, rate)` sets the learning rate and runs the step; `run(plan)` is the part that is captured.
    `changed` are all tensors that a step changes, apart from the optimiser's.
    """

    @property
    def changed(self) -> list[Tensor]: ...

    rate: Tensor
    optimizer: Any

    def __call__(self, plan: Any, rate: float) -> Output: ...

    def run(self, plan: Any) -> Output: ...


class CapturedStep(Generic[Output]):
    """Replays a step from a CUDA graph.

    A graph is valid for one set of shapes; a plan with other shapes captures a new one.
    """

    def __init__(self, step: CapturableStep[Output]) -> None:
        self.step = step
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, plan: Any, rate: float) -> Output:
        self.step.rate.fill_(rate)
        if self.graph is None or _shapes(plan) != _shapes(self.plan):
            self._capture(plan)
            assert self.graph is not None
        for name, value in _tensors(plan):
            getattr(self.plan, name).copy_(value, non_blocking=True)
        self.graph.replay()
        return self.output

    def reset(self) -> None:
        """Free the captured graph and its memory; the next call captures again."""
        self.graph = None

    def _capture(self, plan: Any) -> None:
        """Capture one step. The warm-up before it must not change parameters, optimiser or random state."""
        step, device = self.step, self.step.rate.device
        self.graph = None  # frees its memory for the new one
        self.plan = plan.to(device)
        values = [p.detach().clone() for p in step.changed]
        states = {p: {k: v.clone() for k, v in state.items()} for p, state in step.optimizer.state.items()}
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            with torch.random.fork_rng([device]):
                for _ in range(3):
                    step.run(self.plan)
            with torch.no_grad():
                for parameter, value in zip(step.changed, values, strict=True):
                    parameter.copy_(value)
            for parameter, state in step.optimizer.state.items():
                before = states.get(parameter, {})
                for name, value in state.items():
                    value.copy_(before[name]) if name in before else value.zero_()
        torch.cuda.current_stream(device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = step.run(self.plan)


def _tensors(plan: Any) -> list[tuple[str, Tensor]]:
    pairs = [(f.name, getattr(plan, f.name)) for f in fields(plan)]
    return [(name, value) for name, value in pairs if value is not None]


def _shapes(plan: Any) -> list[tuple[str, torch.Size]]:
    return [(name, value.shape) for name, value in _tensors(plan)]
