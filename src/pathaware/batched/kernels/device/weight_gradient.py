"""The sum over pixels of gᵀ x for one row of taps, from pieces of bfloat16."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cut_in_pieces(data, out, size, PIECES: tl.constexpr, BLOCK: tl.constexpr):
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rest = tl.load(data + e, mask=e < size, other=0.0)
    for piece in tl.static_range(PIECES):
        high = rest.to(out.dtype.element_ty)
        tl.store(out + piece * size.to(tl.int64) + e, high, mask=e < size)
        rest -= high.to(tl.float32)


@triton.jit
def weight_gradient(
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
    next_x = tl.num_programs(2).to(tl.int64) * pixels * INPUTS  # how far the next piece is
    next_g = tl.num_programs(2).to(tl.int64) * pixels * OUTPUTS
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
        at_g = g + m[:, None] * OUTPUTS + o[None, :]
        a0, a1, a2 = _load_pieces(at_g, inside, next_g, PIECES)
        at_x = x + (m + down * width + right)[:, None] * INPUTS + i[None, :]
        valid = inside & (row >= 0) & (row < height)
        b0, b1, b2 = _load_pieces(at_x, valid & (column >= 0) & (column < width), next_x, PIECES)
        t0 = _add_product(t0, a0, a1, a2, b0, b1, b2, PIECES, ACC)
        if TAPS == 3:  # a row of taps reads the same pixels, one further to the right each time
            b0, b1, b2 = _load_pieces(at_x + INPUTS, valid, next_x, PIECES)
            t1 = _add_product(t1, a0, a1, a2, b0, b1, b2, PIECES, ACC)
            b0, b1, b2 = _load_pieces(at_x + 2 * INPUTS, valid & (column + 2 < width), next_x, PIECES)
            t2 = _add_product(t2, a0, a1, a2, b0, b1, b2, PIECES, ACC)
    at = ((task * tl.num_programs(1) + split) * 9 + tap) * OUTPUTS * INPUTS
    at = partial + at + o[:, None] * INPUTS + i[None, :]
    tl.store(at, t0)
    if TAPS == 3:
        tl.store(at + OUTPUTS * INPUTS, t1)
        tl.store(at + 2 * OUTPUTS * INPUTS, t2)


@triton.jit
def _load_pieces(at, ok, further, PIECES: tl.constexpr):
    """All pieces of a block; the first stands in for those that are not there."""
    p0 = tl.load(at, mask=ok[:, None], other=0.0)
    p1 = p0
    p2 = p0
    if PIECES > 1:
        p1 = tl.load(at + further, mask=ok[:, None], other=0.0)
    if PIECES > 2:
        p2 = tl.load(at + 2 * further, mask=ok[:, None], other=0.0)
    return p0, p1, p2


@triton.jit
def _add_product(total, a0, a1, a2, b0, b1, b2, PIECES: tl.constexpr, ACC: tl.constexpr):
    """total + aᵀ b: all pairs of pieces but those too small to matter, the smallest first."""
    if PIECES > 2:
        total = tl.dot(tl.trans(a1), b1, total, out_dtype=ACC)
        total = tl.dot(tl.trans(a2), b0, total, out_dtype=ACC)
        total = tl.dot(tl.trans(a0), b2, total, out_dtype=ACC)
    if PIECES > 1:
        total = tl.dot(tl.trans(a1), b0, total, out_dtype=ACC)
        total = tl.dot(tl.trans(a0), b1, total, out_dtype=ACC)
    return tl.dot(tl.trans(a0), b0, total, input_precision="ieee", out_dtype=ACC)
