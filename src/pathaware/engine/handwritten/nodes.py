"""Nodes of autograd's graph around a hand-written program, for methods that need more than it computes.

`SharedParameters`: some parameters do not adapt, as in BOIL, L2F or MT-Net. A program computes the gradient
of all parameters of a network. So a point is completed with the parameters that all tasks share, and of the
gradient those columns are taken that belong to adapted ones.

`ProgramPasses`: steps descend a function of the outputs o other than the loss, as in MeTAL. With the Jacobian
J of the outputs at a point θ, a direction v `[T, D]`, and d the derivative along it:

    c = ∂L/∂o,   g = Jᵀ c                         autograd differentiates L, which is small; `pull`
    do = J v                                      `push`, the tangent of the outputs
    dc                                            autograd, from do
    dg = d(Jᵀ) c + Jᵀ dc                          `pull_tangent`: both terms in one pass, as in a product H·v
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pathaware.core.execution import Inputs, Passes
from pathaware.core.parameters import Layout
from pathaware.core.path import differentiable_once
from pathaware.engine import kernels
from pathaware.engine.batched import Prepared

if TYPE_CHECKING:
    from pathaware.engine.batched_execution import BatchedExecution
    from pathaware.engine.handwritten.layers import Saved
    from pathaware.engine.handwritten.program import Program


class SharedParameters:
    """Maps points `[T, D]` of the adapted parameters to points `[T, D + E]` of all parameters, and back.

    `whole` is the layout of all parameters; `shared` returns those that do not adapt, by name.
    """

    def __init__(self, layout: Layout, whole: Layout, shared: Callable[[], Mapping[str, Tensor]]) -> None:
        adapted = {entry.name for entry in layout.entries}
        runs = [
            (is_adapted, list(entries))
            for is_adapted, entries in groupby(whole.entries, lambda entry: entry.name in adapted)
        ]
        self.adapted = [is_adapted for is_adapted, _ in runs]
        self.sizes = [sum(entry.numel for entry in entries) for _, entries in runs]
        self.shared = shared
        self.shared_entries = [entry for entry in whole.entries if entry.name not in adapted]

    def complete(self, point: Tensor) -> Tensor:
        """The point of all parameters, `[T, D + E]`."""
        values = self.shared()
        shared = torch.cat([values[entry.name].reshape(-1) for entry in self.shared_entries])
        of_kind = {
            kind: iter(whole.split_with_sizes(self._sizes(kind), dim=1))
            for kind, whole in ((True, point), (False, shared.expand(len(point), -1)))
        }
        return torch.cat([next(of_kind[is_adapted]) for is_adapted in self.adapted], dim=1)

    def select(self, gradient: Tensor) -> Tensor:
        """The columns `[T, D]` of the adapted parameters."""
        parts = zip(gradient.split_with_sizes(self.sizes, dim=1), self.adapted, strict=True)
        return torch.cat([part for part, is_adapted in parts if is_adapted], dim=1)

    def _sizes(self, kind: bool) -> list[int]:
        return [size for size, is_adapted in zip(self.sizes, self.adapted, strict=True) if is_adapted is kind]


@dataclass
class PassState:
    """State shared by the nodes of one pass: its point, and activations and tangents that await a derivative.

    It does not hold the outputs. A node that owned its own result would never be freed.
    """

    program: Program
    point: Tensor
    saved: list[Saved] = field(default_factory=list)
    moved: tuple[Tensor, list[Saved], list[Any]] | None = None


class Pass:
    """One pass of inputs x through the network, at the points `[T, D]` of a program.

    `outputs` are those of the network. `pull` is the gradient of a function of them, which can be
    differentiated once if `create_graph` is set.
    """

    def __init__(self, program: Program, point: Tensor, x: Tensor, *, create_graph: bool) -> None:
        self.state = PassState(program, point.detach())
        self.create_graph = create_graph
        if create_graph:
            self.outputs: Tensor = _Outputs.apply(point, x, self.state)
        else:
            with torch.no_grad():
                self.outputs, self.state.saved = program.outputs(self.state.point, x)
        if not self.outputs.requires_grad:
            self.outputs.requires_grad_()

    def pull(self, cotangent: Tensor) -> Tensor:
        """Jᵀ c, `[T, D]`, for c like the outputs. Call it once."""
        state = self.state
        if self.create_graph:
            gradient: Tensor = _Pull.apply(self.outputs, cotangent, state)
            return gradient
        with torch.no_grad():
            return state.program.pull(state.point, cotangent, state.saved)


class _Outputs(torch.autograd.Function):
    """The outputs of a pass. Their derivative is computed together with that of `_Pull`, if there is one."""

    @staticmethod
    def forward(ctx: Any, point: Tensor, x: Tensor, state: PassState) -> Tensor:
        outputs, state.saved = state.program.outputs(point, x)
        ctx.state, ctx.shape = state, outputs.shape
        ctx.save_for_backward(point, x)
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, to_outputs: Tensor | None) -> Any:
        program, moved, ctx.state.moved = ctx.state.program, ctx.state.moved, None
        point, x = ctx.saved_tensors
        if moved is not None:
            dc = point.new_zeros(ctx.shape) if to_outputs is None else to_outputs
            return program.pull_tangent(point, *moved, dc), None, None
        if to_outputs is None:
            return None, None, None
        return program.pull(point, to_outputs, program.outputs(point, x)[1]), None, None


class _Pull(torch.autograd.Function):
    """Jᵀ c. The outputs are an argument so that autograd differentiates `_Outputs` after this."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, cotangent: Tensor, state: PassState) -> Tensor:
        saved, state.saved = state.saved, []
        gradient = state.program.pull(state.point, cotangent, saved)
        ctx.state = state
        ctx.sizes = [len(tensors) for tensors in saved]
        ctx.save_for_backward(*(tensor for tensors in saved for tensor in tensors))
        return gradient

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, direction: Tensor) -> Any:
        tensors, state = iter(ctx.saved_tensors), ctx.state
        saved = [[next(tensors) for _ in range(size)] for size in ctx.sizes]
        along, tangents = state.program.push(state.point, direction, saved)
        state.moved = direction, saved, tangents
        return None, along, None


class ProgramPasses(Passes):
    """Autograd differentiates the function of `here` and of the outputs; where there is a program, that pulls
    the derivative back from the outputs to the point."""

    execution: BatchedExecution

    def __init__(self, execution: BatchedExecution, point: Tensor, create_graph: bool) -> None:
        super().__init__(execution, point, create_graph)
        self.passes: list[Pass] = []

    @cached_property
    def whole(self) -> Tensor:
        return self.execution._complete(self.point)

    def predict(self, x: Inputs) -> Tensor:
        program = self.execution.program
        if kernels.usable(self.point):
            program = self.execution.kernel_program
        if not isinstance(x, Tensor | Prepared):
            program, x = x.program, x.images
        if isinstance(x, Prepared) or program is None or not program.supports_outputs(self.point, x):
            return self.execution.forward(self.here, x)
        self.passes.append(Pass(program, self.whole, x, create_graph=self.create_graph))
        return self.passes[-1].outputs

    def gradient(self, value: Tensor) -> Tensor:
        outputs = [each.outputs for each in self.passes]
        of_here, *cotangents = torch.autograd.grad(
            value, [self.here, *outputs], create_graph=self.create_graph, allow_unused=True
        )
        gradient: Tensor | None = None
        for each, cotangent in zip(self.passes, cotangents, strict=True):
            if cotangent is not None:
                pulled = each.pull(cotangent)
                gradient = pulled if gradient is None else gradient + pulled
        if gradient is None:
            return torch.zeros_like(self.point) if of_here is None else of_here
        selected = self.execution._select(gradient)
        return selected if of_here is None else selected + of_here
