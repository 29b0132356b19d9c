"""Hand-written programs in two special cases: one task on a GPU, and parameters that do not adapt.

`SingleTaskProgram` computes losses and gradients of a single task with PyTorch's own backward kernels,
called one by one. There the time goes into launching kernels, not into running them. An inner step needs
eight operations for a conv block of four layers; autograd launches three times as many. The Triton kernels do
not help, because each takes longer to launch than one of PyTorch's.

`SharedParameters` serves methods where some parameters do not adapt, as in BOIL, L2F or MT-net. A program
computes the gradient of all parameters of a network. So a point is completed with the parameters that all
tasks share, and of the gradient those columns are taken that belong to adapted ones. Autograd sees two more
nodes per step; a derivative with respect to the shared parameters is the sum over tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pathaware.core.parameters import Layout
from pathaware.engine.handwritten.conv_block import ConvBlock
from pathaware.engine.handwritten.layers import FirstOrderLayer, Flatten, Parameters, Saved
from pathaware.engine.handwritten.program import Program

_ops: Any = torch.ops.aten


class SingleTaskProgram(Program):
    """The program of one task on a GPU, images in PyTorch's layout. Its results cannot be differentiated."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.chain, program.loss, program.layout)
        self.layers = [_single_task(layer) for layer in self.layers]
        # Targets that the loss supports, and their version: checking them synchronises, so it is done once.
        self.checked: tuple[Tensor, int] | None = None

    def supports(self, point: Tensor, x: Tensor, y: Tensor, *, differentiable: bool) -> bool:
        if differentiable or not point.is_cuda or len(point) > 1 or x.requires_grad or y.requires_grad:
            return False
        if x.ndim != (5 if self.images else 3) or torch.cuda.is_current_stream_capturing():
            return False
        if self.checked is None or self.checked[0] is not y or self.checked[1] != y._version:
            self.checked = (y, y._version) if self.loss.supports(y) else None
        return self.checked is not None

    def _images(self, x: Tensor) -> Tensor:
        return x.squeeze(0)


def _single_task(layer: Any) -> Any:
    if isinstance(layer, ConvBlock):
        return SingleTaskBlock(layer)
    return SingleTaskFlatten() if isinstance(layer, Flatten) else layer


class SingleTaskBlock(FirstOrderLayer):
    """A conv block on images `[N, C, H, W]` of one task; parameters are `[1, …]`."""

    def __init__(self, block: ConvBlock) -> None:
        self.padding, self.pool, self.eps = [block.padding] * 2, [block.pool] * 2, block.eps
        self.frozen = block.frozen

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Saved]:
        z = torch.conv2d(x, p["weight"].squeeze(0), None, 1, self.padding)
        gain, shift = p["gain"].squeeze(0), p["shift"].squeeze(0)
        constant, of_batch = self._statistics()
        a, mean, scale = _ops.native_batch_norm(z, gain, shift, *constant, of_batch, 0.0, self.eps)
        a = a.relu_()
        y, places = _ops.max_pool2d_with_indices(a, self.pool)
        return y, [x, z, mean, scale, a, places]

    def backward(
        self, p: Parameters, saved: Saved, g: Tensor, gradient: Parameters, needs_input_grad: bool
    ) -> Tensor | None:
        x, z, mean, scale, a, places = saved
        ga = _ops.max_pool2d_with_indices_backward(g, a, self.pool, self.pool, [0, 0], [1, 1], False, places)
        ga = _ops.threshold_backward(ga, a, 0)
        constant, of_batch = self._statistics()
        gz, gain, shift = _ops.native_batch_norm_backward(
            ga, z, p["gain"].squeeze(0), *constant, mean, scale, of_batch, self.eps, [True, True, True]
        )
        gx, weight, _ = _ops.convolution_backward(
            gz, x, p["weight"].squeeze(0), None, [1, 1], self.padding, [1, 1], False, [0, 0], 1,
            [needs_input_grad, True, False],
        )  # fmt: skip
        gradient["weight"], gradient["gain"], gradient["shift"] = (
            s.unsqueeze(0) for s in (weight, gain, shift)
        )
        if "bias" in p:  # batch norm subtracts it again
            gradient["bias"] = torch.zeros_like(p["bias"])
        return gx if needs_input_grad else None

    def _statistics(self) -> tuple[tuple[Tensor | None, Tensor | None], bool]:
        """The constant mean and variance, if any, and whether those of the batch are used."""
        if self.frozen is None:
            return (None, None), True
        return (self.frozen.running_mean, self.frozen.running_var), False


class SingleTaskFlatten(FirstOrderLayer):
    """Turns images `[N, C, H, W]` into rows `[1, N, C·H·W]`."""

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Saved]:
        return x.flatten(1).unsqueeze(0), [x]

    def backward(
        self, p: Parameters, saved: Saved, g: Tensor, gradient: Parameters, needs_input_grad: bool
    ) -> Tensor | None:
        return g.reshape(saved[0].shape)


class SharedParameters:
    """Maps points `[T, D]` of the adapted parameters to points `[T, D + E]` of all parameters, and back.

    `whole` is the layout of all parameters and `shared` holds those that do not adapt, by name.
    """

    def __init__(self, layout: Layout, whole: Layout, shared: Mapping[str, Tensor]) -> None:
        adapted = {entry.name for entry in layout.entries}
        runs = [
            (is_adapted, list(entries))
            for is_adapted, entries in groupby(whole.entries, lambda entry: entry.name in adapted)
        ]
        self.adapted = [is_adapted for is_adapted, _ in runs]
        self.sizes = [sum(entry.numel for entry in entries) for _, entries in runs]
        self.shared = [
            shared[entry.name] for is_adapted, entries in runs if not is_adapted for entry in entries
        ]

    def complete(self, point: Tensor) -> Tensor:
        """The point of all parameters, `[T, D + E]`; differentiable once."""
        if not torch.is_grad_enabled():
            return self.join(point, self._flat())
        completed: Tensor = _Complete.apply(point, self._flat(), self)
        return completed

    def select(self, gradient: Tensor) -> Tensor:
        """The columns `[T, D]` of the adapted parameters; differentiable once."""
        if not torch.is_grad_enabled():
            return self.split(gradient, of_adapted=True)
        selected: Tensor = _Select.apply(gradient, self)
        return selected

    def join(self, adapted: Tensor, shared: Tensor) -> Tensor:
        """Adapted columns `[T, D]` and shared ones `[E]` in the order of the whole network."""
        sources = {True: adapted, False: shared.expand(len(adapted), -1)}
        taken = {True: 0, False: 0}
        parts = []
        for is_adapted, size in zip(self.adapted, self.sizes, strict=True):
            parts.append(sources[is_adapted].narrow(1, taken[is_adapted], size))
            taken[is_adapted] += size
        return torch.cat(parts, dim=1)

    def split(self, whole: Tensor, *, of_adapted: bool) -> Tensor:
        """The columns of adapted or of shared parameters."""
        parts = whole.split_with_sizes(self.sizes, dim=1)
        chosen = [
            part for part, is_adapted in zip(parts, self.adapted, strict=True) if is_adapted is of_adapted
        ]
        return chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=1)

    def _flat(self) -> Tensor:
        return torch.cat([parameter.reshape(-1) for parameter in self.shared])


class _Complete(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, point: Tensor, shared: Tensor, parameters: SharedParameters) -> Tensor:
        ctx.parameters = parameters
        return parameters.join(point, shared)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        of_point, of_shared = (
            ctx.parameters.split(gradient, of_adapted=adapted) if needed else None
            for adapted, needed in zip((True, False), ctx.needs_input_grad, strict=False)
        )
        return of_point, None if of_shared is None else of_shared.sum(0), None


class _Select(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, parameters: SharedParameters) -> Tensor:
        ctx.parameters = parameters
        return parameters.split(gradient, of_adapted=True).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_adapted: Tensor) -> Any:
        nothing = to_adapted.new_zeros(sum(parameter.numel() for parameter in ctx.parameters.shared))
        return ctx.parameters.join(to_adapted, nothing), None
