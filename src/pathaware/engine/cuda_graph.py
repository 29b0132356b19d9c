"""Capture optimiser steps and adaptations in CUDA graphs and replay them: no launch cost, same numbers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields
from threading import Lock
from typing import Any, Generic

import torch
from torch import Tensor, nn

from pathaware.core.execution import CapturableStep, Output


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


Function = Callable[..., Sequence[Tensor]]
"""A function of tensors that runs on the GPU without synchronising with the host."""

MOST_GRAPHS = 16
"""Graphs that a cache keeps; the least recently used one is dropped."""

_capturing = Lock()  # PyTorch captures one graph at a time


class CapturedCalls:
    """A cache of CUDA graphs of functions of tensors.

    A call is captured when one with the same key, shapes and dtypes comes up for the second time, because
    capturing takes as long as several calls. Until then, and where capturing fails, the function runs as it
    is. Threads may share a cache: their replays take turns.
    """

    def __init__(self) -> None:
        self._graphs: OrderedDict[Hashable, _CapturedCall | None] = OrderedDict()
        self._lock = Lock()
        self._pool: Any = None
        self._used: torch.cuda.Event | None = None
        self.failed = False

    def __call__(self, key: Hashable, function: Function, *tensors: Tensor) -> Sequence[Tensor]:
        """`function(*tensors)`. The key identifies everything else that the result depends on."""
        key = (key, tuple((t.shape, t.dtype, t.device) for t in tensors))
        with self._lock:
            seen = key in self._graphs
            graph = self._graphs.pop(key, None)
            if seen and graph is None and not self.failed:
                graph = self._capture(function, tensors)
            self._graphs[key] = graph
            while len(self._graphs) > MOST_GRAPHS:
                self._graphs.popitem(last=False)
            if graph is not None:
                return self._replay(graph, tensors)
        return function(*tensors)

    def _capture(self, function: Function, tensors: Sequence[Tensor]) -> _CapturedCall | None:
        self._pool = self._pool or torch.cuda.graph_pool_handle()  # graphs take turns, so they share memory
        try:
            with _capturing, torch.inference_mode(False), torch.no_grad():
                return _CapturedCall(function, tensors, self._pool)
        except RuntimeError:  # the function synchronises, or the memory does not suffice
            self.failed = True
            return None

    def _replay(self, graph: _CapturedCall, tensors: Sequence[Tensor]) -> list[Tensor]:
        stream = torch.cuda.current_stream(graph.inputs[0].device)
        self._used = self._used or torch.cuda.Event()
        stream.wait_event(self._used)  # the last replay may have been in another stream
        for own, given in zip(graph.inputs, tensors, strict=True):
            own.copy_(given, non_blocking=True)
        graph.graph.replay()
        results = [output.clone() for output in graph.outputs]
        self._used.record(stream)
        return results

    def __deepcopy__(self, memo: Any) -> CapturedCalls:
        return CapturedCalls()  # graphs read the memory of the original

    def __reduce__(self) -> Any:
        return CapturedCalls, ()


class _CapturedCall:
    """A CUDA graph with its own inputs and outputs."""

    def __init__(self, function: Function, tensors: Sequence[Tensor], pool: Any) -> None:
        device = tensors[0].device
        self.inputs = [torch.empty(t.shape, dtype=t.dtype, device=device).copy_(t) for t in tensors]
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            function(*self.inputs)  # kernels are compiled and libraries allocate their workspaces
        torch.cuda.current_stream(device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        # other threads may allocate memory meanwhile
        with torch.cuda.graph(self.graph, pool=pool, stream=side, capture_error_mode="thread_local"):
            self.outputs = function(*self.inputs)


def captured_state(learner: nn.Module) -> Hashable:
    """Everything but tensor values that a captured graph of a learner depends on.

    Parameters are read where they are, so a graph stays valid when their values change; it does not when they
    move, or when a setting changes.
    """
    tensors = [*learner.parameters(), *learner.buffers()]
    modules = list(learner.modules())
    settings = [v for m in modules for v in vars(m).values() if isinstance(v, (bool, int, float, str))]
    return (
        tuple((t.data_ptr(), t.dtype) for t in tensors),
        tuple(settings),
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
    )
