"""A single task on a GPU: PyTorch's own backward kernels, called one by one.

There the time goes into asking for work, not into doing it. Autograd and its bookkeeping ask for three times
as much as an inner step needs, which is eight operations for a block of four layers. Our own kernels are no
help: each takes longer to launch than one of PyTorch's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pathaware.engine.handwritten.conv_block import ConvBlock
from pathaware.engine.handwritten.layers import FirstOrder, Flatten, Kept, Parameters
from pathaware.engine.handwritten.program import Program

_ops: Any = torch.ops.aten


class SingleTaskProgram(Program):
    """Losses and slopes of one task, images as PyTorch has them; nothing that can be differentiated again."""

    def __init__(self, program: Program) -> None:
        super().__init__(program.chain, program.head, program.layout)
        self.layers = [_single_task(layer) for layer in self.layers]
        # Targets that the head can judge, and their version: a look at them stops the GPU, so one must do.
        self.judged: tuple[Tensor, int] | None = None

    def fits(self, point: Tensor, x: Tensor, y: Tensor, *, differentiable: bool) -> bool:
        if differentiable or not point.is_cuda or len(point) > 1 or x.requires_grad or y.requires_grad:
            return False
        if x.ndim != (5 if self.images else 3) or torch.cuda.is_current_stream_capturing():
            return False
        if self.judged is None or self.judged[0] is not y or self.judged[1] != y._version:
            self.judged = (y, y._version) if self.head.fits(y) else None
        return self.judged is not None

    def _images(self, x: Tensor) -> Tensor:
        return x.squeeze(0)


def _single_task(layer: Any) -> Any:
    if isinstance(layer, ConvBlock):
        return SingleTaskBlock(layer)
    return SingleTaskFlatten() if isinstance(layer, Flatten) else layer


class SingleTaskBlock(FirstOrder):
    """Images `[N, C, H, W]` of one task; its parameters are `[1, …]`."""

    def __init__(self, block: ConvBlock) -> None:
        self.padding, self.pool, self.eps = [block.padding] * 2, [block.pool] * 2, block.eps

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Kept]:
        z = torch.conv2d(x, p["weight"].squeeze(0), None, 1, self.padding)
        gain, shift = p["gain"].squeeze(0), p["shift"].squeeze(0)
        a, mean, scale = _ops.native_batch_norm(z, gain, shift, None, None, True, 0.0, self.eps)
        a = a.relu_()
        y, places = _ops.max_pool2d_with_indices(a, self.pool)
        return y, [x, z, mean, scale, a, places]

    def backward(
        self, p: Parameters, kept: Kept, g: Tensor, slope: Parameters, wanted: bool
    ) -> Tensor | None:
        x, z, mean, scale, a, places = kept
        ga = _ops.max_pool2d_with_indices_backward(g, a, self.pool, self.pool, [0, 0], [1, 1], False, places)
        ga = _ops.threshold_backward(ga, a, 0)
        gz, gain, shift = _ops.native_batch_norm_backward(
            ga, z, p["gain"].squeeze(0), None, None, mean, scale, True, self.eps, [True, True, True]
        )
        gx, weight, _ = _ops.convolution_backward(
            gz, x, p["weight"].squeeze(0), None, [1, 1], self.padding, [1, 1], False, [0, 0], 1,
            [wanted, True, False],
        )  # fmt: skip
        slope["weight"], slope["gain"], slope["shift"] = (s.unsqueeze(0) for s in (weight, gain, shift))
        if "bias" in p:  # batch norm takes it out again
            slope["bias"] = torch.zeros_like(p["bias"])
        return gx if wanted else None


class SingleTaskFlatten(FirstOrder):
    """Images `[N, C, H, W]` to rows `[1, N, C·H·W]`."""

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Kept]:
        return x.flatten(1).unsqueeze(0), [x]

    def backward(
        self, p: Parameters, kept: Kept, g: Tensor, slope: Parameters, wanted: bool
    ) -> Tensor | None:
        return g.reshape(kept[0].shape)
