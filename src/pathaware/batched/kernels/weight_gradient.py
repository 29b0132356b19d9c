"""The gradient of 3×3 filters of T tasks at once, channels last.

    gw[t, o, i, tap] = Σ_m  g[t, m, o]  x[t, m + tap, i]

Both factors have the summed axis m outside, an order in which the tensor cores read 16-bit numbers only.
Float32 is therefore first cut in pieces of bfloat16: two hold 16 bits, where TF32 has 11; three hold all 24.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathaware.batched.kernels.device import sums
from pathaware.batched.kernels.device import weight_gradient as device
from pathaware.batched.kernels.launch import accumulator, blocks, dot_precision, empty

_PROGRAMS = 264
"""Into how many programs the sum over pixels is split: two for each multiprocessor of an H200."""


_PIECE = torch.bfloat16


def weight_gradient(x: Tensor, g: Tensor) -> Tensor:
    """`x [T, N, H, W, I]`, `g [T, N, H, W, O]` → `[T, O, I, 3, 3]` in the accumulator's precision."""
    tasks, images, height, width, inputs = x.shape
    outputs = g.shape[-1]
    pixels = images * height * width
    pieces = _pieces(x)
    taps, depth, warps, stages = _shape(outputs * inputs, pixels * tasks, pieces)
    chunks = blocks(pixels, depth)
    splits = max(1, min(_PROGRAMS * taps // (9 * tasks), chunks))
    share = blocks(chunks, splits) * depth
    splits = blocks(pixels, share)
    dtype, acc = accumulator(x)
    partial = empty(x, tasks, splits, 9, outputs, inputs, dtype=dtype)
    device.weight_gradient[(9 // taps, splits, tasks)](
        _cut(x, pieces),
        _cut(g, pieces),
        partial,
        pixels,
        height,
        width,
        share,
        INPUTS=inputs,
        OUTPUTS=outputs,
        DEPTH=depth,
        TAPS=taps,
        PIECES=pieces,
        ACC=acc,
        num_warps=warps,
        num_stages=stages,
    )
    gw = empty(partial, tasks, outputs, inputs, 3, 3)
    block = 256
    grid = (blocks(outputs * inputs, block), 9, tasks)
    sums.join_splits[grid](partial, gw, splits, SIZE=outputs * inputs, BLOCK=block)
    return gw


def _shape(filters: int, pixels: int, pieces: int) -> tuple[int, int, int, int]:
    """Taps, pixels, warps and pipeline stages of a program, the fastest of those tried on an H200."""
    if pieces == 1 and filters <= 64 * 64:
        return 3, 64, 4, 3
    if pieces == 2 and filters <= 64 * 64 and pixels >= 64_000:
        return 3, 32, 4, 3
    return 1, 32, 4, 4


def _pieces(x: Tensor) -> int:
    if x.dtype != torch.float32:
        return 1
    return 2 if dot_precision(x) == "tf32" else 3


def _cut(data: Tensor, pieces: int) -> Tensor:
    """`[pieces, …]` in bfloat16, whose sum is `data` as far as they hold it."""
    if pieces == 1:
        return data
    out = empty(data, pieces, *data.shape, dtype=_PIECE)
    size, block = data.numel(), 1024
    device.cut_in_pieces[(blocks(size, block),)](data, out, size, PIECES=pieces, BLOCK=block)
    return out
