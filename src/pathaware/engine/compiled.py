"""The whole meta-gradient as one compiled program, on a CPU.

Inner loop, query loss and the pass back through both are traced once into a single graph of operations, and
`torch.compile` turns that into fused C++ code. It takes most of a minute and about halves the time of an
iteration on small networks, so it pays in long runs only.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from pathaware.core.episodes import Episodes
from pathaware.core.learner import FewShotLearner
from pathaware.core.meta_gradient import Unrolled
from pathaware.core.path import Order

Function = Callable[[Sequence[Tensor], Sequence[Tensor]], Any]
"""(parameters, tensors of the episodes) → losses `[T]`, gradients of their sum (None where there is none)."""


class CompiledUnrolled(Unrolled):
    """The numbers of `Unrolled` to rounding. Where compiling fails it says so once and goes on without."""

    function: Function | None = None
    shapes: list[torch.Size] | None = None

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        tensors = episodes.tensors()
        shapes = [tensor.shape for tensor in tensors]
        if self.shapes is None:
            self.shapes = shapes
            self.function = self._compile(learner, tensors)
        if self.function is None or shapes != self.shapes:  # a rest of a meta-batch is not worth compiling
            return super().backward(learner, episodes, weight)
        parameters = list(learner.parameters())
        with torch.no_grad():
            losses: Tensor
            losses, gradients = self.function([p.detach() for p in parameters], tensors)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is None:
                    continue
                gradient = gradient * weight
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        return losses

    def _compile(self, learner: FewShotLearner, tensors: Sequence[Tensor]) -> Function | None:
        parameters = [p.detach() for p in learner.parameters()]
        try:
            graph = make_fx(_meta_gradient(learner, self.order))(parameters, tensors)
            function: Function = torch.compile(graph, dynamic=False)
            with torch.no_grad():
                function(parameters, tensors)
        except Exception as error:  # a compiler fails in many ways
            reason = str(error).strip().split("\n")[0]
            warnings.warn(f"the meta-iteration cannot be compiled, it runs as it is: {reason}", stacklevel=4)
            return None
        return function


def has_compiler() -> bool:
    """Whether there is a C++ compiler that `torch.compile` would find."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


class _TaskLosses(nn.Module):
    """A learner's query losses as a module's forward pass, which `functional_call` can give parameters to."""

    def __init__(self, learner: FewShotLearner, order: Order) -> None:
        super().__init__()
        self.learner = learner
        self.order = order

    def forward(self, *tensors: Tensor) -> Tensor:
        return self.learner.task_losses(Episodes(*tensors), self.order)


def _meta_gradient(learner: FewShotLearner, order: Order) -> Function:
    module = _TaskLosses(learner, order)
    names = [name for name, _ in module.named_parameters()]

    def function(values: Sequence[Tensor], tensors: Sequence[Tensor]) -> Any:
        parameters = [value.detach().requires_grad_() for value in values]
        with torch.enable_grad():
            losses = functional_call(module, dict(zip(names, parameters, strict=True)), tuple(tensors))
        return losses.detach(), torch.autograd.grad(losses.sum(), parameters, allow_unused=True)

    return function
