"""Compile the whole meta-gradient into one program for CPUs.

The inner loop, the query loss and the backward pass are traced once into a single graph, which
`torch.compile` turns into fused C++ code. Compiling takes most of a minute and about halves the time of an
iteration on small networks, so it pays in long runs only.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from pathaware.core.episodes import Episodes
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.meta_gradient import Unrolled
from pathaware.core.parameters import CallWithParameters
from pathaware.core.path import Order

LossesAndGradients = Callable[[Sequence[Tensor], Sequence[Tensor]], Any]
"""(parameters, tensors of the episodes) → losses `[T]`, and the gradients of their sum, some of them None."""


class CompiledUnrolled(Unrolled):
    """`Unrolled`, compiled for the first meta-batch's shapes; the numbers agree to rounding.

    It is compiled again if the learner chooses another execution.

    If compiling fails, it warns once and behaves like `Unrolled`.
    """

    compiled: LossesAndGradients | None = None
    shapes: list[torch.Size] | None = None
    execution: object = None

    def task_threads(self, learner: FewShotLearner, tasks: int) -> AbstractContextManager[None]:
        return nullcontext()  # the compiled program has threads of its own

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        tensors = episodes.tensors()
        shapes = [tensor.shape for tensor in tensors]
        if self.shapes is None or self.execution is not learner.execution:
            self.shapes, self.execution = shapes, learner.execution
            self.compiled = self._compile(learner, tensors)
        if self.compiled is None or shapes != self.shapes:  # a smaller last chunk is not worth compiling
            return super().backward(learner, episodes, weight)
        parameters = list(learner.parameters())
        with torch.no_grad():
            losses: Tensor
            losses, gradients = self.compiled([p.detach() for p in parameters], tensors)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is None:
                    continue
                gradient = gradient * weight
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        return losses

    def _compile(self, learner: FewShotLearner, tensors: Sequence[Tensor]) -> LossesAndGradients | None:
        parameters = [p.detach() for p in learner.parameters()]
        try:
            graph = make_fx(_losses_and_gradients(learner, self.order))(parameters, tensors)
            compiled: LossesAndGradients = torch.compile(graph, dynamic=False)
            with torch.no_grad():
                compiled(parameters, tensors)
        except Exception as error:  # a compiler fails in many ways
            reason = str(error).strip().split("\n")[0]
            warnings.warn(
                f"the meta-iteration cannot be compiled and runs uncompiled: {reason}", stacklevel=4
            )
            return None
        return compiled


def has_compiler() -> bool:
    """True if there is a C++ compiler that `torch.compile` would find."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))


class _TaskLosses(nn.Module):
    """A learner's query losses as a forward pass, so that `functional_call` can replace its parameters."""

    def __init__(self, learner: FewShotLearner, order: Order) -> None:
        super().__init__()
        self.learner = learner
        self.order = order

    def forward(self, support_x: Tensor, support_y: Tensor, query_x: Tensor, query_y: Tensor) -> Tensor:
        return self.learner.adapted_losses(Episodes(support_x, support_y, query_x, query_y), self.order)


def _losses_and_gradients(learner: FewShotLearner, order: Order) -> LossesAndGradients:
    module = _TaskLosses(learner, order)
    names, call = [name for name, _ in module.named_parameters()], CallWithParameters(module)

    def compute(values: Sequence[Tensor], tensors: Sequence[Tensor]) -> Any:
        parameters = [value.detach().requires_grad_() for value in values]
        with torch.enable_grad():
            losses = call(dict(zip(names, parameters, strict=True)), *tensors)
        return losses.detach(), torch.autograd.grad(losses.sum(), parameters, allow_unused=True)

    return compute
