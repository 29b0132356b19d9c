"""Losses and gradients of a single task on a GPU, with PyTorch's own backward kernels called one by one.

There the time goes into launching kernels, not into running them. An inner step needs eight operations for a
conv block of four layers; autograd launches three times as many. The Triton kernels do not help, because each
takes longer to launch than one of PyTorch's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pathaware.engine.handwritten.conv_block import ConvBlock, PlainConvolution
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
    if isinstance(layer, PlainConvolution):
        return SingleTaskConvolution(layer)
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


class SingleTaskConvolution(FirstOrderLayer):
    """A convolution on images `[N, C, H, W]` of one task; parameters are `[1, …]`."""

    def __init__(self, layer: PlainConvolution) -> None:
        self.padding = [layer.padding] * 2

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Saved]:
        bias = p["bias"].squeeze(0) if "bias" in p else None
        return torch.conv2d(x, p["weight"].squeeze(0), bias, 1, self.padding), [x]

    def backward(
        self, p: Parameters, saved: Saved, g: Tensor, gradient: Parameters, needs_input_grad: bool
    ) -> Tensor | None:
        outputs = p["weight"].shape[1]
        gx, weight, bias = _ops.convolution_backward(
            g, saved[0], p["weight"].squeeze(0), [outputs], [1, 1], self.padding, [1, 1], False, [0, 0], 1,
            [needs_input_grad, True, "bias" in p],
        )  # fmt: skip
        gradient["weight"] = weight.unsqueeze(0)
        if "bias" in p:
            gradient["bias"] = bias.unsqueeze(0)
        return gx if needs_input_grad else None


class SingleTaskFlatten(FirstOrderLayer):
    """Turns images `[N, C, H, W]` into rows `[1, N, C·H·W]`."""

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Saved]:
        return x.flatten(1).unsqueeze(0), [x]

    def backward(
        self, p: Parameters, saved: Saved, g: Tensor, gradient: Parameters, needs_input_grad: bool
    ) -> Tensor | None:
        return g.reshape(saved[0].shape)
