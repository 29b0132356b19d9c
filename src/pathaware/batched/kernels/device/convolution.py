"""Convolution as a matrix product, tap by tap, and the order of filters it reads."""

from __future__ import annotations

import triton
import triton.language as tl

from pathaware.batched.kernels.device.sums import store_moments


@triton.jit
def pack(weight, forward, reverse, stride, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, BLOCK: tl.constexpr):
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
def convolve(
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
