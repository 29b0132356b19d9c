"""3×3 convolutions of T tasks at once, channels last, as matrix products on the tensor cores.

    y[t, m, o] = Σ_{tap, i}  x[t, m + tap, i]  w[t, tap, o, i]

m runs over the pixels of all images of a task. The input gradient is the same with taps reversed and channels
exchanged, so with `weight_gradient` this is all that any order of derivative needs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathaware.batched.kernels.device import convolution as device
from pathaware.batched.kernels.device import sums
from pathaware.batched.kernels.launch import accumulator, blocks, dot_precision, empty


def pack(weight: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Filters `[T, O, I, 3, 3]` in the two orders that `convolve` reads: `[T, 9, O, I]`, and, for the
    input gradient, `[T, 9, I, O]` with taps reversed."""
    tasks, outputs, inputs = weight.shape[:3]
    forward = empty(like, tasks, 9, outputs, inputs)
    reverse = empty(like, tasks, 9, inputs, outputs)
    block = 128
    device.pack[(blocks(outputs * inputs, block), tasks)](
        weight, forward, reverse, weight.stride(0), OUTPUTS=outputs, INPUTS=inputs, BLOCK=block
    )
    return forward, reverse


def convolve(
    x: Tensor, filters: Tensor, x2: Tensor | None = None, filters2: Tensor | None = None, stats: bool = False
) -> tuple[Tensor, Tensor | None]:
    """`x [T, N, H, W, I]` with packed filters `[T, 9, O, I]` → `[T, N, H, W, O]`, plus `x2` with `filters2`.

    With `stats` also the mean and variance of every output channel, `[T, 2, O]`, taken while the result is
    still in registers.
    """
    tasks, images, height, width, inputs = x.shape
    outputs = filters.shape[2]
    y = empty(x, tasks, images, height, width, outputs)
    pixels = images * height * width
    rows, warps, stages = _shape(pixels * tasks, x.dtype == torch.bfloat16)
    tiles = blocks(pixels, rows)
    partial = empty(filters, tasks, 2, outputs, tiles, dtype=accumulator(x)[0]) if stats else y
    device.convolve[(tiles, tasks)](
        x,
        filters,
        x if x2 is None else x2,
        filters if filters2 is None else filters2,
        y,
        partial,
        pixels,
        height,
        width,
        INPUTS=inputs,
        OUTPUTS=outputs,
        ROWS=rows,
        DEPTH=min(inputs, 64),
        TERMS=1 if x2 is None else 2,
        STATS=stats,
        PRECISION=dot_precision(x),
        ACC=accumulator(x)[1],
        num_warps=warps,
        num_stages=stages,
    )
    return y, join_moments(partial, pixels, rows) if stats else None


def _shape(pixels: int, brief: bool) -> tuple[int, int, int]:
    """Pixels, warps and pipeline stages of a program, the fastest of those tried on an H200: large tiles read
    the filters less often, small ones keep all multiprocessors busy where there are few pixels."""
    if pixels >= 64_000:
        return (128, 8, 3) if brief else (128, 8, 2)
    return (64, 4, 3) if pixels >= 16_000 else (64, 8, 3)


def join_moments(partial: Tensor, pixels: int, rows: int) -> Tensor:
    """Mean and variance `[T, 2, C]` from those of tiles `[T, 2, C, tiles]`, which hold `rows` pixels each."""
    tasks, _, channels, tiles = partial.shape
    moments = empty(partial, tasks, 2, channels)
    sums.join_moments[(channels, tasks)](partial, moments, tiles, pixels, rows, CHANNELS=channels, BLOCK=1024)
    return moments
