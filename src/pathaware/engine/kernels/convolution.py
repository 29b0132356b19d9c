"""3×3 convolutions of T tasks at once, channels last, as matrix products on the tensor cores.

    y[t, m, o] = Σ_{tap, i}  x[t, m + tap, i]  w[t, tap, o, i]

m runs over the pixels of all images of a task. The input gradient is the same with taps reversed and channels
exchanged, so with `weight_gradient` this is all that any order of derivative needs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pathaware.engine.kernels.launch import (
    accumulator,
    blocks,
    dot_precision,
    empty,
    join_moments_kernel,
    store_moments,
)


def pack(weight: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Filters `[T, O, I, 3, 3]` in the two orders that `convolve` reads: `[T, 9, O, I]`, and, for the
    input gradient, `[T, 9, I, O]` with taps reversed."""
    tasks, outputs, inputs = weight.shape[:3]
    forward = empty(like, tasks, 9, outputs, inputs)
    reverse = empty(like, tasks, 9, inputs, outputs)
    block = 128
    pack_kernel[(blocks(outputs * inputs, block), tasks)](
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
    convolve_kernel[(tiles, tasks)](
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
    join_moments_kernel[(channels, tasks)](
        partial, moments, tiles, pixels, rows, CHANNELS=channels, BLOCK=1024
    )
    return moments


# Convolution as a matrix product, tap by tap, and the order of filters it reads.


@triton.jit
def pack_kernel(
    weight, forward, reverse, stride, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BLOCK: tl.constexpr
):
    task = tl.program_id(1)
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = e < OUTPUTS * INPUTS
    swapped = (e % INPUTS) * OUTPUTS + e // INPUTS
    base = task * 9 * OUTPUTS * INPUTS
    for tap in tl.static_range(9):
        value = tl.load(weight + task * stride + e * 9 + tap, mask=inside)
        value = value.to(forward.dtype.element_ty)
        tl.store(forward + base + tap * OUTPUTS * INPUTS + e, value, mask=inside)
        tl.store(reverse + base + (8 - tap) * OUTPUTS * INPUTS + swapped, value, mask=inside)


@triton.jit
def convolve_kernel(
    x,
    filters,
    x2,
    filters2,
    y,
    partial,
    pixels,
    height,
    width,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    TERMS: tl.constexpr,
    STATS: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):
    tile = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    m = tile * ROWS + tl.arange(0, ROWS)
    inside = m < pixels
    column = m % width
    row = (m // width) % height
    o = tl.arange(0, OUTPUTS)
    k = tl.arange(0, DEPTH)
    x += task * pixels * INPUTS
    x2 += task * pixels * INPUTS
    filters += task * 9 * OUTPUTS * INPUTS
    filters2 += task * 9 * OUTPUTS * INPUTS
    SLICES: tl.constexpr = INPUTS // DEPTH
    total = tl.zeros((ROWS, OUTPUTS), ACC)
    for term in tl.static_range(TERMS):
        source = x if term == 0 else x2
        weights = filters if term == 0 else filters2
        for i in range(9 * SLICES):
            tap = i // SLICES
            first = (i % SLICES) * DEPTH
            down = tap // 3 - 1
            right = tap % 3 - 1
            valid = (
                (row + down >= 0) & (row + down < height) & (column + right >= 0) & (column + right < width)
            )
            at = (m + down * width + right) * INPUTS + first
            # neighbouring taps read the same pixels, so these are worth keeping in the first cache
            a = tl.load(
                source + at[:, None] + k[None, :],
                mask=(inside & valid)[:, None],
                other=0.0,
                cache_modifier=".ca",
            )
            b = tl.load(weights + (tap * OUTPUTS + o)[:, None] * INPUTS + first + k[None, :])
            total = tl.dot(a, tl.trans(b), total, input_precision=PRECISION, out_dtype=ACC)
    out = y + task * pixels * OUTPUTS + m[:, None] * OUTPUTS + o[None, :]
    tl.store(out, total.to(y.dtype.element_ty), mask=inside[:, None])
    if STATS:
        store_moments(partial, total, inside, pixels, task, OUTPUTS, ROWS)
