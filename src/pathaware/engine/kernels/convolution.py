"""3×3 convolutions of T tasks at once, channels last, as matrix products on the tensor cores.

    y[t, m, o] = Σ_{tap, i}  x[t, m + tap, i]  w[t, tap, o, i]

m runs over the pixels of all images of a task. The gradient of the input is the same sum with taps reversed
and channels exchanged, so this and `weight_gradient` are sufficient for derivatives of any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from pathaware.engine.kernels.launch import (
    accumulator,
    blocks,
    dot_precision,
    empty,
    join_moments,
    store_moments,
    stored_channels,
)

WIDE = 128
"""Channels that a program computes at most."""


def pack(weight: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Copy filters `[T, O, I, 3, 3]` into the two orders that `convolve` reads: `[T, 9, O, I]`, and, for the
    gradient of the input, `[T, 9, I, O]` with taps reversed. There O and I are the stored channels."""
    return pack_all([weight], like)[0]


def pack_all(weights: Sequence[Tensor], like: Tensor) -> list[tuple[Tensor, Tensor]]:
    """`pack` for each of several layers, in one launch if they are equally spaced parts of one point."""
    if not weights:
        return []
    first, distance = weights[0], _spacing(weights)
    if distance is None:
        return [pack(weight, like) for weight in weights]
    count, (tasks, width, depth) = len(weights), first.shape[:3]
    outputs, inputs = stored_channels(width), stored_channels(depth)
    forward = empty(like, count, tasks, 9, outputs, inputs)
    reverse = empty(like, count, tasks, 9, inputs, outputs)
    block = 128
    pack_kernel[(blocks(outputs * inputs, block), tasks, count)](
        first, forward, reverse, first.stride(0), distance,
        WIDTH=width, DEPTH=depth, OUTPUTS=outputs, INPUTS=inputs, BLOCK=block,
    )  # fmt: skip
    return list(zip(forward.unbind(), reverse.unbind(), strict=True))


def _spacing(weights: Sequence[Tensor]) -> int | None:
    """The distance between one layer's filters and the next one's in memory, if it is always the same."""
    first = weights[0]
    starts = [weight.data_ptr() // weight.element_size() for weight in weights]
    distances = {after - before for before, after in pairwise(starts)}
    alike = all((w.shape, w.stride()) == (first.shape, first.stride()) for w in weights)
    return (distances or {0}).pop() if alike and len(distances) <= 1 else None


def convolve(
    x: Tensor, filters: Tensor, x2: Tensor | None = None, filters2: Tensor | None = None, stats: bool = False,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Convolve `x [T, N, H, W, I]` with packed `filters [T, 9, O, I]`; add `x2` convolved with `filters2`,
    and a bias of `[T, O]` or fewer channels.

    Returns `[T, N, H, W, O]` and, with `stats`, the mean and variance of every output channel, `[T, 2, O]`,
    which are computed while the result is still in registers.
    """
    tasks, images, height, width, inputs = x.shape
    outputs = filters.shape[2]
    y = empty(x, tasks, images, height, width, outputs)
    pixels = images * height * width
    terms = 1 if x2 is None else 2
    wide = outputs > WIDE or inputs > WIDE
    reduced = x.dtype == torch.bfloat16
    rows, warps, stages = _wide_shape(x) if wide else _shape(pixels * tasks, reduced, stats, terms)
    block = min(outputs, WIDE)
    tiles = blocks(pixels, rows)
    partial = empty(filters, tasks, 2, outputs, tiles, dtype=accumulator(x)[0]) if stats else y
    convolve_kernel[(tiles, tasks, outputs // block)](
        x, filters, x if x2 is None else x2, filters if filters2 is None else filters2, y, partial,
        y if bias is None else bias, 0 if bias is None else bias.stride(0), pixels, height, width,
        BIAS=0 if bias is None else bias.shape[1], INPUTS=inputs, OUTPUTS=outputs, ROWS=rows, BLOCK=block,
        DEPTH=min(inputs, 128 // x.element_size() if wide else 64), TERMS=terms, STATS=stats,
        PRECISION=dot_precision(x), ACC=accumulator(x)[1], num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y, join_moments(partial, pixels, rows) if stats else None


def _wide_shape(x: Tensor) -> tuple[int, int, int]:
    """`_shape` with many channels, of which a program computes some; float64 is for tests."""
    return (128, 8, 4) if x.element_size() <= 4 else (16, 4, 1)


def _shape(pixels: int, reduced: bool, stats: bool, terms: int) -> tuple[int, int, int]:
    """Pixels, warps and pipeline stages of a program: the fastest of those tried on an H200.

    Large tiles read the filters less often; small ones keep all multiprocessors busy with few pixels.
    """
    if reduced and pixels >= 16_000:
        if stats:
            return 128, 4, 3
        return 128, 8, 4 if terms == 2 and pixels < 64_000 else 3
    if reduced and pixels >= 8_000:
        return 128, 8, 3
    if pixels >= 64_000:
        return 128, 8, 2
    return (64, 4, 3) if pixels >= 16_000 else (64, 8, 3)


@triton.jit
def pack_kernel(
    weight, forward, reverse, stride, distance, WIDTH: tl.constexpr, DEPTH: tl.constexpr,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1)
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = e < OUTPUTS * INPUTS
    i = e % INPUTS
    o = e // INPUTS
    swapped = i * OUTPUTS + o
    real = inside & (i < DEPTH) & (o < WIDTH)
    weight += tl.program_id(2).to(tl.int64) * distance
    base = (tl.program_id(2) * tl.num_programs(1) + task) * 9 * OUTPUTS * INPUTS
    # all taps are read at once: a loop would wait for every one of them
    tap = tl.arange(0, 16)[None, :]
    at = weight + task * stride + (o * DEPTH + i)[:, None] * 9 + tap
    value = tl.load(at, mask=real[:, None] & (tap < 9), other=0.0).to(forward.dtype.element_ty)
    mask = inside[:, None] & (tap < 9)
    tl.store(forward + base + tap * OUTPUTS * INPUTS + e[:, None], value, mask=mask)
    tl.store(reverse + base + (8 - tap) * OUTPUTS * INPUTS + swapped[:, None], value, mask=mask)


@triton.jit
def convolve_kernel(
    x, filters, x2, filters2, y, partial, bias, bias_stride, pixels, height, width,
    BIAS: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr, TERMS: tl.constexpr, STATS: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    m = tile * ROWS + tl.arange(0, ROWS)
    inside = m < pixels
    column = m % width
    row = (m // width) % height
    o = tl.arange(0, BLOCK)
    if BLOCK < OUTPUTS:
        o += tl.program_id(2) * BLOCK
    k = tl.arange(0, DEPTH)
    x += task * pixels * INPUTS
    x2 += task * pixels * INPUTS
    filters += task * 9 * OUTPUTS * INPUTS
    filters2 += task * 9 * OUTPUTS * INPUTS
    SLICES: tl.constexpr = INPUTS // DEPTH
    total = tl.zeros((ROWS, BLOCK), ACC)
    if BIAS > 0:
        total += tl.load(bias + task * bias_stride + o, mask=o < BIAS, other=0.0).to(ACC)[None, :]
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
        store_moments(partial, total, inside, pixels, task, o, OUTPUTS, ROWS)
