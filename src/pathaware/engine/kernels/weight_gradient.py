"""The gradient of the 3×3 filters of T tasks at once, channels last.

    gw[t, o, i, tap] = Σ_m  g[t, m, o]  x[t, m + tap, i]

The summed axis m is the outer one of both factors, an order that the tensor cores read for 16-bit numbers
only. Float32 is therefore first split into pieces of bfloat16: two hold 16 bits, where TF32 has 11; three
hold all 24.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from pathaware.engine.kernels.launch import accumulator, blocks, dot_precision, empty

_PROGRAMS = 264
"""Number of programs for the sum over pixels: two per multiprocessor of an H200."""

WIDE = 128
"""Channels of a side of the filters that a program computes at most."""

_PIECE = torch.bfloat16


def weight_gradient(x: Tensor, g: Tensor, out: Tensor) -> None:
    """Write the gradient to `out [T, O, I, 3, 3]` for `x [T, N, H, W, C]` and `g [T, N, H, W, C′]`."""
    join([weight_gradient_parts(*split([x, g]))], [out])


def weight_gradient_parts(x: Tensor, g: Tensor, x2: Tensor | None = None, g2: Tensor | None = None) -> Tensor:
    """Parts `[T, parts, 9, C′, C]` of the gradient for `x [T, N, H, W, C]` and `g [T, N, H, W, C′]`, both as
    `split` returned them.

    With `x2` and `g2`, of the same shapes, the gradient is the sum for both pairs.
    """
    tasks, images, height, width, inputs = x.shape[-5:]
    outputs = g.shape[-1]
    pixels = images * height * width
    pieces = len(x) if x.ndim == 6 else number_of_pieces(x)
    block_o, block_i = min(outputs, WIDE), min(inputs, WIDE)
    squares = (outputs // block_o) * (inputs // block_i)
    taps, depth, warps, stages = _shape(outputs * inputs, pixels * tasks, pieces)
    warps = 8 if block_o * block_i == WIDE * WIDE and squares > 1 else warps
    chunks = blocks(pixels, depth)
    splits = max(1, min(_PROGRAMS * taps // (9 * tasks * squares), chunks))
    share = blocks(chunks, splits) * depth
    splits = blocks(pixels, share)
    dtype, acc = accumulator(x)
    partial = empty(x, tasks, splits, 9, outputs, inputs, dtype=dtype)
    pairs = [x, g] if x2 is None or g2 is None else [x, g, x2, g2]
    weight_gradient_kernel[(9 // taps * squares, splits, tasks)](
        *(pairs * 2)[:4], partial, pixels, height, width, share,
        INPUTS=inputs, OUTPUTS=outputs, BLOCK_O=block_o, BLOCK_I=block_i, DEPTH=depth, TAPS=taps,
        PIECES=pieces, TERMS=len(pairs) // 2, ACC=acc, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return partial


def join(partials: Sequence[Tensor], outs: Sequence[Tensor]) -> None:
    """Add the parts of the gradients of several layers, three per launch if their sizes are the same."""
    pairs = list(zip(partials, outs, strict=True))
    while pairs:
        partial, out = pairs[0]
        alike = [pair for pair in pairs if _sizes(*pair) == _sizes(partial, out)][:3]
        pairs = [pair for pair in pairs if not any(pair is other for other in alike)]
        filled = (alike * 3)[:3]
        tasks, _, _, outputs, inputs = partial.shape
        block = 256
        join_splits_kernel[(blocks(outputs * inputs, block), 9, tasks * len(alike))](
            *[partial for partial, _ in filled], *[out for _, out in filled],
            *[partial.shape[1] for partial, _ in filled], out.stride(0), tasks,
            WIDTH=out.shape[1], FAN_IN=out.shape[2], INPUTS=inputs, SIZE=outputs * inputs, BLOCK=block,
        )  # fmt: skip


def _sizes(partial: Tensor, out: Tensor) -> tuple[object, ...]:
    return partial.shape[2:], out.shape, out.stride(0)


def _shape(filters: int, pixels: int, pieces: int) -> tuple[int, int, int, int]:
    """Taps, pixels, warps and pipeline stages of a program: the fastest of those tried on an H200."""
    if pieces == 1 and filters <= 64 * 64:
        return 3, 64, 4, 3
    if pieces == 2 and filters <= 64 * 64 and pixels >= 64_000:
        return 3, 32, 4, 3
    return 1, 32, 4, 4


def number_of_pieces(x: Tensor) -> int:
    """Number of pieces, so that products are at least as exact as `dot_precision` asks for."""
    if x.dtype != torch.float32:
        return 1
    return 2 if dot_precision(x) == "tf32" else 3


def piece() -> tl.dtype:
    """The dtype of pieces in kernels."""
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[_PIECE]


def split(tensors: list[Tensor]) -> list[Tensor]:
    """Split float32 tensors into `[pieces, …]` in bfloat16 that add up to them, as far as their bits allow.

    Others are returned as they are.
    """
    pieces = number_of_pieces(tensors[0])
    if pieces == 1:
        return tensors
    out = [empty(data, pieces, *data.shape, dtype=_PIECE) for data in tensors]
    sizes, block = [data.numel() for data in tensors], 1024
    split_into_pieces_kernel[(blocks(max(sizes), block), len(tensors))](
        *(tensors * 2)[:4], *(out * 2)[:4], *(sizes * 2)[:4], PIECES=pieces, BLOCK=block
    )
    return out


@triton.jit
def split_into_pieces_kernel(
    data0, data1, data2, data3, out0, out1, out2, out3, size0, size1, size2, size3,
    PIECES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    which = tl.program_id(1)
    if which == 0:
        _split_block(data0, out0, size0, PIECES, BLOCK)
    elif which == 1:
        _split_block(data1, out1, size1, PIECES, BLOCK)
    elif which == 2:
        _split_block(data2, out2, size2, PIECES, BLOCK)
    else:
        _split_block(data3, out3, size3, PIECES, BLOCK)


@triton.jit
def _split_block(data, out, size, PIECES: tl.constexpr, BLOCK: tl.constexpr):
    e = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    rest = tl.load(data + e, mask=e < size, other=0.0)
    for piece in tl.static_range(PIECES):
        high = rest.to(out.dtype.element_ty)
        tl.store(out + piece * size.to(tl.int64) + e, high, mask=e < size)
        rest -= high.to(tl.float32)


@triton.jit
def weight_gradient_kernel(
    x, g, x2, g2, partial, pixels, height, width, share,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
    DEPTH: tl.constexpr, TAPS: tl.constexpr, PIECES: tl.constexpr, TERMS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    tap = (tl.program_id(0) % (9 // TAPS)) * TAPS
    split = tl.program_id(1)
    task = tl.program_id(2).to(tl.int64)
    down = tap // 3 - 1
    right = tap % 3 - 1
    next_x = tl.num_programs(2).to(tl.int64) * pixels * INPUTS  # distance to the next piece
    next_g = tl.num_programs(2).to(tl.int64) * pixels * OUTPUTS
    o = tl.arange(0, BLOCK_O)
    i = tl.arange(0, BLOCK_I)
    if BLOCK_O < OUTPUTS or BLOCK_I < INPUTS:
        square = tl.program_id(0) // (9 // TAPS)
        o += square // (INPUTS // BLOCK_I) * BLOCK_O
        i += square % (INPUTS // BLOCK_I) * BLOCK_I
    t0 = tl.zeros((BLOCK_O, BLOCK_I), ACC)
    t1 = tl.zeros((BLOCK_O, BLOCK_I), ACC)
    t2 = tl.zeros((BLOCK_O, BLOCK_I), ACC)
    start = split * share
    for term in tl.static_range(TERMS):
        from_x = (x if term == 0 else x2) + task * pixels * INPUTS
        from_g = (g if term == 0 else g2) + task * pixels * OUTPUTS
        for first in range(start, tl.minimum(start + share, pixels), DEPTH):
            m = first + tl.arange(0, DEPTH)
            column = m % width + right
            row = (m // width) % height + down
            inside = m < pixels
            at_g = from_g + m[:, None] * OUTPUTS + o[None, :]
            a0, a1, a2 = _load_pieces(at_g, inside, next_g, PIECES)
            at_x = from_x + (m + down * width + right)[:, None] * INPUTS + i[None, :]
            valid = inside & (row >= 0) & (row < height)
            b0, b1, b2 = _load_pieces(at_x, valid & (column >= 0) & (column < width), next_x, PIECES)
            t0 = add_product(t0, a0, a1, a2, b0, b1, b2, PIECES, ACC)
            if TAPS == 3:  # the taps of a row read the same pixels, each one further to the right
                b0, b1, b2 = _load_pieces(at_x + INPUTS, valid, next_x, PIECES)
                t1 = add_product(t1, a0, a1, a2, b0, b1, b2, PIECES, ACC)
                b0, b1, b2 = _load_pieces(at_x + 2 * INPUTS, valid & (column + 2 < width), next_x, PIECES)
                t2 = add_product(t2, a0, a1, a2, b0, b1, b2, PIECES, ACC)
    at = ((task * tl.num_programs(1) + split) * 9 + tap) * OUTPUTS * INPUTS
    at = partial + at + o[:, None] * INPUTS + i[None, :]
    tl.store(at, t0)
    if TAPS == 3:
        tl.store(at + OUTPUTS * INPUTS, t1)
        tl.store(at + 2 * OUTPUTS * INPUTS, t2)


@triton.jit
def _load_pieces(at, ok, further, PIECES: tl.constexpr):
    """All pieces of a block; missing ones are replaced by the first and never used."""
    p0 = tl.load(at, mask=ok[:, None], other=0.0)
    p1 = p0
    p2 = p0
    if PIECES > 1:
        p1 = tl.load(at + further, mask=ok[:, None], other=0.0)
    if PIECES > 2:
        p2 = tl.load(at + 2 * further, mask=ok[:, None], other=0.0)
    return p0, p1, p2


@triton.jit
def pieces_of(value, PIECES: tl.constexpr, PIECE: tl.constexpr):
    """All pieces of a block in registers, or the block itself if there is one; as `_load_pieces`."""
    p0 = value
    if PIECES > 1:
        p0 = value.to(PIECE)
    p1 = p0
    p2 = p0
    if PIECES > 1:
        rest = value - p0.to(value.dtype)
        p1 = rest.to(PIECE)
        if PIECES > 2:
            p2 = (rest - p1.to(value.dtype)).to(PIECE)
    return p0, p1, p2


@triton.jit
def add_product(total, a0, a1, a2, b0, b1, b2, PIECES: tl.constexpr, ACC: tl.constexpr):
    """total + aᵀ b: all pairs of pieces except those too small to matter, smallest first."""
    if PIECES > 2:
        total = tl.dot(tl.trans(a1), b1, total, out_dtype=ACC)
        total = tl.dot(tl.trans(a2), b0, total, out_dtype=ACC)
        total = tl.dot(tl.trans(a0), b2, total, out_dtype=ACC)
    if PIECES > 1:
        total = tl.dot(tl.trans(a1), b0, total, out_dtype=ACC)
        total = tl.dot(tl.trans(a0), b1, total, out_dtype=ACC)
    return tl.dot(tl.trans(a0), b0, total, input_precision="ieee", out_dtype=ACC)


@triton.jit
def join_splits_kernel(
    partial0, partial1, partial2, gw0, gw1, gw2, splits0, splits1, splits2, stride, tasks,
    WIDTH: tl.constexpr, FAN_IN: tl.constexpr, INPUTS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    layer = tl.program_id(2) // tasks
    task = tl.program_id(2) % tasks
    if layer == 0:
        _join_splits(partial0, gw0, splits0, task, stride, WIDTH, FAN_IN, INPUTS, SIZE, BLOCK)
    elif layer == 1:
        _join_splits(partial1, gw1, splits1, task, stride, WIDTH, FAN_IN, INPUTS, SIZE, BLOCK)
    else:
        _join_splits(partial2, gw2, splits2, task, stride, WIDTH, FAN_IN, INPUTS, SIZE, BLOCK)


@triton.jit
def _join_splits(
    partial, gw, splits, task, stride, WIDTH: tl.constexpr, FAN_IN: tl.constexpr, INPUTS: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Adds the splits in a fixed order, and leaves out channels that the network does not have."""
    tap = tl.program_id(1)
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), partial.dtype.element_ty)
    for split in tl.range(splits, loop_unroll_factor=4):
        total += tl.load(partial + ((task * splits + split) * 9 + tap) * SIZE + e, mask=e < SIZE, other=0.0)
    o = e // INPUTS
    i = e % INPUTS
    at = gw + task * stride + (o * FAN_IN + i) * 9 + tap
    tl.store(at, total, mask=(o < WIDTH) & (i < FAN_IN) & (e < SIZE))
