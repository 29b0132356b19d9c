"""The gradient of 3×3 filters of T tasks at once, channels last.

    gw[t, o, i, tap] = Σ_m  g[t, m, o]  x[t, m + tap, i]

Both factors have the summed axis m outside, an order in which the tensor cores read 16-bit numbers only. Float32
is therefore cut in pieces of bfloat16: two give 16 bits, more than TF32 has, three give all of float32's.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pathaware.batched.kernels.launch import accumulator, blocks, dot_precision, empty

_PROGRAMS = 396
"""Into how many programs the sum over pixels is split: three for each multiprocessor of an H200."""


def weight_gradient(x: Tensor, g: Tensor) -> Tensor:
    """`x [T, N, H, W, I]`, `g [T, N, H, W, O]` → `[T, O, I, 3, 3]` in the accumulator's precision."""
    tasks, images, height, width, inputs = x.shape
    outputs = g.shape[-1]
    pixels = images * height * width
    taps = 3 if outputs * inputs <= 64 * 64 else 1
    depth = 64
    chunks = blocks(pixels, depth)
    splits = max(1, min(_PROGRAMS * taps // (9 * tasks), chunks))
    share = blocks(chunks, splits) * depth
    splits = blocks(pixels, share)
    partial = empty(x, tasks, splits, 9, outputs, inputs, dtype=accumulator(x)[0])
    _weight_gradient[(9 // taps, splits, tasks)](
        x,
        g,
        partial,
        pixels,
        height,
        width,
        share,
        INPUTS=inputs,
        OUTPUTS=outputs,
        DEPTH=depth,
        TAPS=taps,
        PIECES=_pieces(x),
        ACC=accumulator(x)[1],
        num_warps=4 if taps == 1 else 8,
        num_stages=2,
    )
    gw = empty(partial, tasks, outputs, inputs, 3, 3)
    block = 256
    grid = (blocks(outputs * inputs, block), 9, tasks)
    _join_splits[grid](partial, gw, splits, SIZE=outputs * inputs, BLOCK=block)
    return gw


def _pieces(x: Tensor) -> int:
    if x.dtype != torch.float32:
        return 1
    return 2 if dot_precision(x) == "tf32" else 3


@triton.jit
def _weight_gradient(
    x, g, partial, pixels, height, width, share,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr, TAPS: tl.constexpr,
    PIECES: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    tap = tl.program_id(0) * TAPS
    split = tl.program_id(1)
    task = tl.program_id(2).to(tl.int64)
    down = tap // 3 - 1
    right = tap % 3 - 1
    x += task * pixels * INPUTS
    g += task * pixels * OUTPUTS
    o = tl.arange(0, OUTPUTS)
    i = tl.arange(0, INPUTS)
    t0 = tl.zeros((OUTPUTS, INPUTS), ACC)
    t1 = tl.zeros((OUTPUTS, INPUTS), ACC)
    t2 = tl.zeros((OUTPUTS, INPUTS), ACC)
    start = split * share
    for first in range(start, tl.minimum(start + share, pixels), DEPTH):
        m = first + tl.arange(0, DEPTH)
        column = m % width + right
        row = (m // width) % height + down
        inside = m < pixels
        a = tl.load(g + m[:, None] * OUTPUTS + o[None, :], mask=inside[:, None], other=0.0)
        inside = inside & (row >= 0) & (row < height)
        at = x + (m + down * width + right)[:, None] * INPUTS + i[None, :]
        b = tl.load(at, mask=(inside & (column >= 0) & (column < width))[:, None], other=0.0)
        t0 = _multiply(a, b, t0, PIECES, ACC)
        if TAPS == 3:  # a row of taps reads the same pixels, one further to the right each time
            b = tl.load(at + INPUTS, mask=inside[:, None], other=0.0)
            t1 = _multiply(a, b, t1, PIECES, ACC)
            b = tl.load(at + 2 * INPUTS, mask=(inside & (column + 2 < width))[:, None], other=0.0)
            t2 = _multiply(a, b, t2, PIECES, ACC)
    at = ((task * tl.num_programs(1) + split) * 9 + tap) * OUTPUTS * INPUTS
    at = partial + at + o[:, None] * INPUTS + i[None, :]
    tl.store(at, t0)
    if TAPS == 3:
        tl.store(at + OUTPUTS * INPUTS, t1)
        tl.store(at + 2 * OUTPUTS * INPUTS, t2)


@triton.jit
def _multiply(a, b, total, PIECES: tl.constexpr, ACC: tl.constexpr):
    """total + aᵀ b, small products first."""
    if PIECES == 1:
        return tl.dot(tl.trans(a), b, total, input_precision="ieee", out_dtype=ACC)
    a0 = a.to(tl.bfloat16)
    b0 = b.to(tl.bfloat16)
    a1 = (a - a0.to(tl.float32)).to(tl.bfloat16)
    b1 = (b - b0.to(tl.float32)).to(tl.bfloat16)
    if PIECES == 3:
        a2 = (a - a0.to(tl.float32) - a1.to(tl.float32)).to(tl.bfloat16)
        b2 = (b - b0.to(tl.float32) - b1.to(tl.float32)).to(tl.bfloat16)
        total = tl.dot(tl.trans(a1), b1, total)
        total = tl.dot(tl.trans(a2), b0, total)
        total = tl.dot(tl.trans(a0), b2, total)
    total = tl.dot(tl.trans(a1), b0, total)
    total = tl.dot(tl.trans(a0), b1, total)
    return tl.dot(tl.trans(a0), b0, total)


@triton.jit
def _join_splits(partial, gw, splits, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Adds the splits up in a fixed order, so that the same inputs give the same bits."""
    tap = tl.program_id(1)
    task = tl.program_id(2)
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), partial.dtype.element_ty)
    for split in range(splits):
        total += tl.load(partial + ((task * splits + split) * 9 + tap) * SIZE + e, mask=e < SIZE, other=0.0)
    tl.store(gw + (task * SIZE + e) * 9 + tap, total, mask=e < SIZE)
