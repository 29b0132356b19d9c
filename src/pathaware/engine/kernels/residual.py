"""Batch norm with a leaky ReLU, and the end of a residual block, for T tasks and any number of channels.

The symbols are those of `normalisation`. A leaky ReLU with `negative_slope` s has the derivative 1 or s, so a
is gz or s gz; the identity has s = 1 and the ReLU s = 0. Programs take a part of the channels of some pixels.

    z = leaky(γ ŷ + β)                      `moments_of`, `normalise`, `backward`, `second`
    z = max over 2×2 pixels of leaky(x + y)    `join`, `spread`, `collect`
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pathaware.engine.kernels.launch import accumulator, blocks, empty, join_moments, sum_parts
from pathaware.engine.kernels.windows import cells_of

_COLUMNS = 64
_ROWS = 32
_PROGRAMS = 2112
"""Programs that share a sum: sixteen per multiprocessor of an H200."""


def moments_of(y: Tensor) -> Tensor:
    """Mean and variance `[T, 2, C]` of `y [T, …, C]`."""
    tasks, pixels, channels = _shape(y)
    tiles = blocks(pixels, 4 * _ROWS)
    partial = empty(y, tasks, 2, channels, tiles, dtype=accumulator(y)[0])
    moments_kernel[(tiles, blocks(channels, _COLUMNS), tasks)](
        y, partial, pixels, channels, ROWS=4 * _ROWS, **_block(y), num_warps=8
    )
    return join_moments(partial, pixels, 4 * _ROWS)


def normalise(y: Tensor, moments: Tensor, gamma: Tensor, beta: Tensor, eps: float, slope: float) -> Tensor:
    """z, shaped like y."""
    z = torch.empty_like(y)
    _, pixels, channels = _shape(y)
    leaky_kernel[_grid(y)](
        y, moments, gamma, beta, z, gamma.stride(0), beta.stride(0), pixels, channels, eps,
        ROWS=_ROWS, **_block(y, slope),
    )  # fmt: skip
    return z


def backward(
    gz: Tensor, y: Tensor, moments: Tensor, gamma: Tensor, beta: Tensor, eps: float, slope: float
) -> tuple[Tensor, Tensor]:
    """gy, shaped like y, and A and B `[T, 2, C]`."""
    tasks, pixels, channels = _shape(y)
    norm = moments, gamma, beta
    sizes = gamma.stride(0), beta.stride(0), pixels, channels, eps
    partial = empty(y, tasks, _parts(y), 2, channels, dtype=accumulator(y)[0])
    leaky_sums_kernel[(partial.shape[1], blocks(channels, _COLUMNS), tasks)](
        gz, gz, y, *norm, partial, *sizes, ROWS=_ROWS, SECOND=False, **_block(y, slope)
    )
    sums = sum_parts(partial)
    gy = torch.empty_like(y)
    leaky_backward_kernel[_grid(y)](gz, y, *norm, sums, gy, *sizes, ROWS=_ROWS, **_block(y, slope))
    return gy, sums


def second(
    u: Tensor, c: Tensor, b: Tensor, gz: Tensor, y: Tensor, moments: Tensor, gamma: Tensor, beta: Tensor,
    sums: Tensor, eps: float, slope: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dz, d(gy) and d(gγ) `[T, C]` for changes u of y, c of γ and b of β; c and b are `[T, C]`."""
    tasks, pixels, channels = _shape(y)
    norm = moments, gamma, beta
    sizes = gamma.stride(0), beta.stride(0), pixels, channels, eps
    partial = empty(y, tasks, _parts(y), 3, channels, dtype=accumulator(y)[0])
    leaky_sums_kernel[(partial.shape[1], blocks(channels, _COLUMNS), tasks)](
        u, gz, y, *norm, partial, *sizes, ROWS=_ROWS, SECOND=True, **_block(y, slope)
    )
    dz, gy = torch.empty_like(y), torch.empty_like(y)
    ggamma = empty(y, tasks, channels, dtype=accumulator(y)[0])
    leaky_second_kernel[_grid(y)](
        u, c, b, gz, y, *norm, sums, sum_parts(partial), dz, gy, ggamma, c.stride(0), b.stride(0), *sizes,
        ROWS=_ROWS, **_block(y, slope),
    )  # fmt: skip
    return dz, gy, ggamma


def join(x: Tensor, y: Tensor, slope: float) -> tuple[Tensor, Tensor]:
    """z `[T, N, H/2, W/2, C]` for x and y `[T, N, H, W, C]`, and which pixel of each window is the maximum,
    plus four if it is positive."""
    tasks, images, height, width, channels = x.shape
    z = empty(x, tasks, images, height // 2, width // 2, channels)
    where = empty(x, *z.shape, dtype=torch.int8)
    cells = tasks * images * (height // 2) * (width // 2)
    join_block_kernel[(blocks(cells, _ROWS), blocks(channels, _COLUMNS))](
        x, y, z, where, cells, height, width, channels, ROWS=_ROWS, **_block(x, slope)
    )
    return z, where


def spread(gz: Tensor, where: Tensor, size: torch.Size, slope: float) -> Tensor:
    """The gradient of both summands, `[T, N, H, W, C]`."""
    tasks, images, height, width, channels = size
    g = empty(gz, *size)
    cells = tasks * images * blocks(height, 2) * blocks(width, 2)
    spread_kernel[(blocks(cells, _ROWS), blocks(channels, _COLUMNS))](
        gz, where, g, cells, height, width, channels, ROWS=_ROWS, **_block(gz, slope)
    )
    return g


def collect(u: Tensor, where: Tensor, slope: float) -> Tensor:
    """dz for a change u of the sum."""
    *_, height, width, channels = u.shape
    dz = empty(u, *where.shape)
    cells = dz.numel() // channels
    collect_kernel[(blocks(cells, _ROWS), blocks(channels, _COLUMNS))](
        u, where, dz, cells, height, width, channels, ROWS=_ROWS, **_block(u, slope)
    )
    return dz


def _shape(y: Tensor) -> tuple[int, int, int]:
    """Tasks, pixels of each, and channels."""
    return len(y), y[0].numel() // y.shape[-1], y.shape[-1]


def _grid(y: Tensor) -> tuple[int, int, int]:
    tasks, pixels, channels = _shape(y)
    return blocks(pixels, _ROWS), blocks(channels, _COLUMNS), tasks


def _parts(y: Tensor) -> int:
    tasks, pixels, channels = _shape(y)
    return min(blocks(_PROGRAMS, tasks * blocks(channels, _COLUMNS)), blocks(pixels, _ROWS))


def _block(y: Tensor, slope: float | None = None) -> dict[str, object]:
    """Settings of kernels; `negative_slope` is among them because numbers arrive in float32."""
    return {"COLUMNS": _COLUMNS, "ACC": accumulator(y)[1]} | ({} if slope is None else {"SLOPE": slope})


@triton.jit
def _columns(channels, COLUMNS: tl.constexpr):
    """This program's channels, and which of them exist."""
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return c, c < channels


@triton.jit
def _values(data, c, exists, ACC: tl.constexpr):
    """One value per channel, as a row."""
    return tl.load(data + c, mask=exists, other=0.0).to(ACC)[None, :]


@triton.jit
def _norm(
    moments, gamma, beta, gamma_stride, beta_stride, task, c, exists, channels, eps, ACC: tl.constexpr
):  # fmt: skip
    """μ, r, γ and β of a task."""
    mean = _values(moments + task * 2 * channels, c, exists, ACC)
    scale = 1.0 / tl.sqrt(_values(moments + (task * 2 + 1) * channels, c, exists, ACC) + eps)
    gain = _values(gamma + task * gamma_stride, c, exists, ACC)
    shift = _values(beta + task * beta_stride, c, exists, ACC)
    return mean, scale, gain, shift


@triton.jit
def moments_kernel(
    y, partial, pixels, channels, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ACC: tl.constexpr
):
    """Mean and sum of squared deviations of some pixels; plain sums of squares would cancel."""
    tile = tl.program_id(0)
    tiles = tl.num_programs(0)
    task = tl.program_id(2).to(tl.int64)
    c, exists = _columns(channels, COLUMNS)
    m = tile * ROWS + tl.arange(0, ROWS)
    inside = (m < pixels)[:, None] & exists[None, :]
    at = m[:, None] * channels + c[None, :]
    values = tl.load(y + task * pixels * channels + at, mask=inside, other=0.0).to(ACC)
    mean = tl.sum(values, 0) / tl.minimum(pixels - tile * ROWS, ROWS)
    away = tl.where(inside, values - mean[None, :], 0.0)
    to = partial + (task * 2 * channels + c) * tiles + tile
    tl.store(to, mean, mask=exists)
    tl.store(to + channels * tiles, tl.sum(away * away, 0), mask=exists)


@triton.jit
def leaky_kernel(
    y, moments, gamma, beta, z, gamma_stride, beta_stride, pixels, channels, eps,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(2).to(tl.int64)
    c, exists = _columns(channels, COLUMNS)
    mean, scale, gain, shift = _norm(
        moments, gamma, beta, gamma_stride, beta_stride, task, c, exists, channels, eps, ACC
    )
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (m < pixels)[:, None] & exists[None, :]
    at = task * pixels * channels + m[:, None] * channels + c[None, :]
    n = (tl.load(y + at, mask=inside, other=0.0).to(ACC) - mean) * scale
    t = n * gain + shift
    tl.store(z + at, tl.where(t > 0, t, SLOPE * t).to(z.dtype.element_ty), mask=inside)


@triton.jit
def leaky_sums_kernel(
    u, gz, y, moments, gamma, beta, partial, gamma_stride, beta_stride, pixels, channels, eps,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SECOND: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """A and B, or, if SECOND, U, V and X."""
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    task = tl.program_id(2).to(tl.int64)
    c, exists = _columns(channels, COLUMNS)
    mean, scale, gain, shift = _norm(
        moments, gamma, beta, gamma_stride, beta_stride, task, c, exists, channels, eps, ACC
    )
    first = tl.zeros((ROWS, COLUMNS), ACC)
    other = tl.zeros((ROWS, COLUMNS), ACC)
    third = tl.zeros((ROWS, COLUMNS), ACC)
    for start in range(part * ROWS, pixels, parts * ROWS):
        m = start + tl.arange(0, ROWS)
        inside = (m < pixels)[:, None] & exists[None, :]
        at = task * pixels * channels + m[:, None] * channels + c[None, :]
        n = (tl.load(y + at, mask=inside, other=0.0).to(ACC) - mean) * scale
        a = tl.load(gz + at, mask=inside, other=0.0).to(ACC)
        a = tl.where(n * gain + shift > 0, a, SLOPE * a)
        if SECOND:
            du = tl.load(u + at, mask=inside, other=0.0).to(ACC)
            first += du
            other += du * n
            third += du * a
        else:
            first += a
            other += a * n
    if SECOND:
        to = partial + (task * parts + part) * 3 * channels + c
        tl.store(to + 2 * channels, tl.sum(third, 0), mask=exists)
    else:
        to = partial + (task * parts + part) * 2 * channels + c
    tl.store(to, tl.sum(first, 0), mask=exists)
    tl.store(to + channels, tl.sum(other, 0), mask=exists)


@triton.jit
def leaky_backward_kernel(
    gz, y, moments, gamma, beta, sums, gy, gamma_stride, beta_stride, pixels, channels, eps,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(2).to(tl.int64)
    c, exists = _columns(channels, COLUMNS)
    mean, scale, gain, shift = _norm(
        moments, gamma, beta, gamma_stride, beta_stride, task, c, exists, channels, eps, ACC
    )
    a_mean = _values(sums + task * 2 * channels, c, exists, ACC) / pixels
    b_mean = _values(sums + (task * 2 + 1) * channels, c, exists, ACC) / pixels
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (m < pixels)[:, None] & exists[None, :]
    at = task * pixels * channels + m[:, None] * channels + c[None, :]
    n = (tl.load(y + at, mask=inside, other=0.0).to(ACC) - mean) * scale
    a = tl.load(gz + at, mask=inside, other=0.0).to(ACC)
    a = tl.where(n * gain + shift > 0, a, SLOPE * a)
    out = gain * scale * (a - a_mean - n * b_mean)
    tl.store(gy + at, out.to(gy.dtype.element_ty), mask=inside)


@triton.jit
def leaky_second_kernel(
    u, c_, b_, gz, y, moments, gamma, beta, sums, second, dz, gy, ggamma, c_stride, b_stride, gamma_stride,
    beta_stride, pixels, channels, eps,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(2).to(tl.int64)
    c, exists = _columns(channels, COLUMNS)
    mean, scale, gain, shift = _norm(
        moments, gamma, beta, gamma_stride, beta_stride, task, c, exists, channels, eps, ACC
    )
    to_gain = _values(c_ + task * c_stride, c, exists, ACC)
    to_shift = _values(b_ + task * b_stride, c, exists, ACC)
    sa = _values(sums + task * 2 * channels, c, exists, ACC)
    sb = _values(sums + (task * 2 + 1) * channels, c, exists, ACC)
    su = _values(second + task * 3 * channels, c, exists, ACC)
    sv = _values(second + (task * 3 + 1) * channels, c, exists, ACC)
    sx = _values(second + (task * 3 + 2) * channels, c, exists, ACC)
    weight = sx - (su * sa + sv * sb) / pixels
    factor = gain * scale
    by_n = to_gain - factor * sv / pixels
    by_1 = to_shift - factor * su / pixels
    on_u = -scale * factor * sb / pixels
    on_a = scale * by_n
    on_n = -(on_u * sv + on_a * sb + factor * scale * weight) / pixels
    on_1 = -(on_u * su + on_a * sa) / pixels
    if tl.program_id(0) == 0:
        tl.store(ggamma + task * channels + c[None, :], scale * weight, mask=exists[None, :])
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (m < pixels)[:, None] & exists[None, :]
    at = task * pixels * channels + m[:, None] * channels + c[None, :]
    n = (tl.load(y + at, mask=inside, other=0.0).to(ACC) - mean) * scale
    a = tl.load(gz + at, mask=inside, other=0.0).to(ACC)
    du = tl.load(u + at, mask=inside, other=0.0).to(ACC)
    positive = n * gain + shift > 0
    a = tl.where(positive, a, SLOPE * a)
    t = factor * du + by_n * n + by_1
    tl.store(dz + at, tl.where(positive, t, SLOPE * t).to(dz.dtype.element_ty), mask=inside)
    out = on_u * du + on_a * a + on_n * n + on_1
    tl.store(gy + at, out.to(gy.dtype.element_ty), mask=inside)


@triton.jit
def _window(w, height, width, channels, c):
    """The first pixel of pooled pixel w, as an offset for every channel."""
    across = width // 2
    down = height // 2
    first = ((w // (across * down)).to(tl.int64) * height + 2 * ((w // across) % down)) * width
    return (first + 2 * (w % across))[:, None] * channels + c[None, :]


@triton.jit
def join_block_kernel(
    x, y, z, where, cells, height, width, channels,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    c, exists = _columns(channels, COLUMNS)
    w = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (w < cells)[:, None] & exists[None, :]
    at = _window(w, height, width, channels, c)
    best = tl.load(x + at, mask=inside, other=0.0).to(ACC) + tl.load(y + at, mask=inside, other=0.0).to(ACC)
    which = tl.zeros((ROWS, COLUMNS), tl.int32)
    for i in tl.static_range(1, 4):
        pixel = at + ((i // 2) * width + i % 2) * channels
        here = tl.load(x + pixel, mask=inside, other=0.0).to(ACC)
        here += tl.load(y + pixel, mask=inside, other=0.0).to(ACC)
        better = (here > best) | (here != here)
        best = tl.where(better, here, best)
        which = tl.where(better, i, which)
    which = tl.where(best > 0, which + 4, which)
    best = tl.where(best > 0, best, SLOPE * best)
    to = w.to(tl.int64)[:, None] * channels + c[None, :]
    tl.store(z + to, best.to(z.dtype.element_ty), mask=inside)
    tl.store(where + to, which.to(tl.int8), mask=inside)


@triton.jit
def spread_kernel(
    gz, where, g, cells, height, width, channels,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    c, exists = _columns(channels, COLUMNS)
    w = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first, inside, right, below, pooled = cells_of(w.to(tl.int64), cells, height, width)
    whole = right & below
    at = pooled[:, None] * channels + c[None, :]
    which = tl.load(where + at, mask=whole[:, None] & exists[None, :], other=8).to(tl.int32)
    grad = tl.load(gz + at, mask=whole[:, None] & exists[None, :], other=0.0).to(ACC)
    grad = tl.where(which >= 4, grad, SLOPE * grad)
    to = first[:, None] * channels + c[None, :]
    for i in tl.static_range(4):
        ok = inside if i == 0 else (right if i == 1 else (below if i == 2 else whole))
        here = tl.where((which == i) | (which == i + 4), grad, 0.0)
        pixel = to + ((i // 2) * width + i % 2) * channels
        tl.store(g + pixel, here.to(g.dtype.element_ty), mask=ok[:, None] & exists[None, :])


@triton.jit
def collect_kernel(
    u, where, dz, cells, height, width, channels,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SLOPE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    c, exists = _columns(channels, COLUMNS)
    w = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (w < cells)[:, None] & exists[None, :]
    to = w.to(tl.int64)[:, None] * channels + c[None, :]
    which = tl.load(where + to, mask=inside, other=0).to(tl.int32)
    pixel = which & 3
    at = _window(w, height, width, channels, c) + ((pixel // 2) * width + pixel % 2) * channels
    value = tl.load(u + at, mask=inside, other=0.0).to(ACC)
    tl.store(dz + to, tl.where(which >= 4, value, SLOPE * value).to(dz.dtype.element_ty), mask=inside)
