"""The passes of the first block, which compute the pixels they need from images."""

from __future__ import annotations

import triton
import triton.language as tl

from pathaware.batched.kernels.device.sums import store_moments
from pathaware.batched.kernels.device.windows import (
    cells_of,
    channel_values,
    load_sum,
    peak_of,
    pick,
    put,
    rows_of,
    second_coefficients,
    store_sums,
)


@triton.jit
def _filters(weight, task, stride, C: tl.constexpr, INPUTS: tl.constexpr, DEPTH: tl.constexpr):
    """A task's filters as `[C, DEPTH]`, zero beyond the 9·I true columns."""
    k = tl.arange(0, DEPTH)
    at = weight + task * stride + tl.arange(0, C)[:, None] * (9 * INPUTS) + k[None, :]
    return tl.load(at, mask=(k < 9 * INPUTS)[None, :], other=0.0)


@triton.jit
def _patches(x, corner, ok, height, width, INPUTS: tl.constexpr, DEPTH: tl.constexpr):
    """The 3×3 surroundings of pixels, `[BLOCK, DEPTH]`; each begins at its `corner` of the padded images."""
    k = tl.arange(0, DEPTH)
    across = width + width % 2 + 2
    down = height + height % 2 + 2
    at = (k // 9) * (down * across) + (k % 9) // 3 * across + k % 3
    return tl.load(x + corner[:, None] + at[None, :], mask=ok[:, None] & (k < 9 * INPUTS)[None, :], other=0.0)


@triton.jit
def _corner(first, height, width, INPUTS: tl.constexpr):
    """Where the surroundings of pixel number `first` of a task begin in its padded images."""
    across = width + width % 2 + 2
    down = height + height % 2 + 2
    image = first // (height * width)
    row = first // width % height
    return image * (INPUTS * down * across) + row * across + first % width


@triton.jit
def _window(
    x, first, inside, right, below, height, width, INPUTS: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """The surroundings of the four pixels of each window."""
    corner = _corner(first, height, width, INPUTS)
    across = width + width % 2 + 2
    p0 = _patches(x, corner, inside, height, width, INPUTS, DEPTH)
    p1 = _patches(x, corner + 1, right, height, width, INPUTS, DEPTH)
    p2 = _patches(x, corner + across, below, height, width, INPUTS, DEPTH)
    p3 = _patches(x, corner + across + 1, right & below, height, width, INPUTS, DEPTH)
    return p0, p1, p2, p3


@triton.jit
def _store_filters(partial, gw, task, C: tl.constexpr, INPUTS: tl.constexpr, DEPTH: tl.constexpr):
    """This program's part of the filters' gradient."""
    k = tl.arange(0, DEPTH)
    at = (task * tl.num_programs(0) + tl.program_id(0)) * C + tl.arange(0, C)
    tl.store(partial + at[:, None] * (9 * INPUTS) + k[None, :], gw, mask=(k < 9 * INPUTS)[None, :])


@triton.jit
def _images(x, task, count, height, width, INPUTS: tl.constexpr):
    """Where a task's padded images begin."""
    return x + task * count * (INPUTS * (height + height % 2 + 2) * (width + width % 2 + 2))


@triton.jit
def _times(patches, filters, PRECISION: tl.constexpr, ACC: tl.constexpr):
    return tl.dot(patches, tl.trans(filters.to(patches.dtype)), input_precision=PRECISION, out_dtype=ACC)


@triton.jit
def _onto(filters, slope, patches, PRECISION: tl.constexpr, ACC: tl.constexpr):
    """Adds Σ over pixels of slope ⊗ patch to the filters' gradient."""
    return tl.dot(
        tl.trans(slope.to(patches.dtype)), patches, filters, input_precision=PRECISION, out_dtype=ACC
    )


@triton.jit
def stem_moments(
    x, weight, partial, stride, pixels, count, height, width,
    OUTPUTS: tl.constexpr, ROWS: tl.constexpr, INPUTS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = m < pixels
    x = _images(x, task, count, height, width, INPUTS)
    patches = _patches(x, _corner(m, height, width, INPUTS), inside, height, width, INPUTS, DEPTH)
    y = _times(patches, _filters(weight, task, stride, OUTPUTS, INPUTS, DEPTH), PRECISION, ACC)
    store_moments(partial, y, inside, pixels, task, OUTPUTS, ROWS)


@triton.jit
def stem_normalise(
    x, weight, moments, gamma, beta, z, peaks, stride, gamma_stride, beta_stride, cells, count, height, width,
    eps, C: tl.constexpr, BLOCK: tl.constexpr, INPUTS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, C, ACC
    )
    filters = _filters(weight, task, stride, C, INPUTS, DEPTH)
    x = _images(x, task, count, height, width, INPUTS)
    first, _, right, below, pooled = cells_of(
        tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), cells, height, width
    )
    corner = _corner(first, height, width, INPUTS)
    across = width + width % 2 + 2
    whole = right & below
    y0 = _times(_patches(x, corner, whole, height, width, INPUTS, DEPTH), filters, PRECISION, ACC)
    y1 = _times(_patches(x, corner + 1, whole, height, width, INPUTS, DEPTH), filters, PRECISION, ACC)
    high = tl.maximum(y0, y1)
    low = tl.minimum(y0, y1)
    y2 = _times(_patches(x, corner + across, whole, height, width, INPUTS, DEPTH), filters, PRECISION, ACC)
    y3 = _times(
        _patches(x, corner + across + 1, whole, height, width, INPUTS, DEPTH), filters, PRECISION, ACC
    )
    high = tl.maximum(high, tl.maximum(y2, y3))
    low = tl.minimum(low, tl.minimum(y2, y3))
    best = (tl.where(gain > 0, high, tl.where(gain < 0, low, y0)) - mean) * scale
    windows = count * (height // 2) * (width // 2)
    put(peaks + task * windows * C, pooled, whole, best, C)
    put(z + task * windows * C, pooled, whole, tl.maximum(best * gain + shift, 0.0), C)


@triton.jit
def stem_pull_back(
    gz, x, weight, moments, gamma, beta, sums, gfilters, stride, gamma_stride, beta_stride, cells, count,
    height, width, eps, C: tl.constexpr, BLOCK: tl.constexpr, INPUTS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, C, ACC
    )
    filters = _filters(weight, task, stride, C, INPUTS, DEPTH)
    x = _images(x, task, count, height, width, INPUTS)
    gz += task * count * (height // 2) * (width // 2) * C
    pixels = count * height * width
    a = load_sum(sums, 0, 2, task, C) / pixels
    b = load_sum(sums, 1, 2, task, C) / pixels
    factor = gain * scale
    gw = tl.zeros((C, DEPTH), ACC)
    for start in range(part * BLOCK, cells, parts * BLOCK):
        first, inside, right, below, pooled = cells_of(start + tl.arange(0, BLOCK), cells, height, width)
        whole = right & below
        p0, p1, p2, p3 = _window(x, first, inside, right, below, height, width, INPUTS, DEPTH)
        n0 = (_times(p0, filters, PRECISION, ACC) - mean) * scale
        n1 = (_times(p1, filters, PRECISION, ACC) - mean) * scale
        n2 = (_times(p2, filters, PRECISION, ACC) - mean) * scale
        n3 = (_times(p3, filters, PRECISION, ACC) - mean) * scale
        is0, is1, is2, is3 = peak_of(n0, n1, n2, n3, gain, shift, whole)
        slope = rows_of(gz, pooled, whole, C, ACC)
        # patches of pixels that do not exist are zero, and add nothing
        gw = _onto(gw, factor * (tl.where(is0, slope, 0.0) - a - n0 * b), p0, PRECISION, ACC)
        gw = _onto(gw, factor * (tl.where(is1, slope, 0.0) - a - n1 * b), p1, PRECISION, ACC)
        gw = _onto(gw, factor * (tl.where(is2, slope, 0.0) - a - n2 * b), p2, PRECISION, ACC)
        gw = _onto(gw, factor * (tl.where(is3, slope, 0.0) - a - n3 * b), p3, PRECISION, ACC)
    _store_filters(gfilters, gw, task, C, INPUTS, DEPTH)


@triton.jit
def stem_sum_second(
    gz, x, weight, v, moments, gamma, beta, partial, stride, v_stride, gamma_stride, beta_stride, cells,
    count, height, width, eps,
    C: tl.constexpr, BLOCK: tl.constexpr, INPUTS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, C, ACC
    )
    filters = _filters(weight, task, stride, C, INPUTS, DEPTH)
    direction = _filters(v, task, v_stride, C, INPUTS, DEPTH)
    x = _images(x, task, count, height, width, INPUTS)
    gz += task * count * (height // 2) * (width // 2) * C
    su = tl.zeros((BLOCK, C), ACC)
    sv = tl.zeros((BLOCK, C), ACC)
    sx = tl.zeros((BLOCK, C), ACC)
    for start in range(part * BLOCK, cells, parts * BLOCK):
        first, inside, right, below, pooled = cells_of(start + tl.arange(0, BLOCK), cells, height, width)
        whole = right & below
        p0, p1, p2, p3 = _window(x, first, inside, right, below, height, width, INPUTS, DEPTH)
        n0 = (_times(p0, filters, PRECISION, ACC) - mean) * scale
        n1 = (_times(p1, filters, PRECISION, ACC) - mean) * scale
        n2 = (_times(p2, filters, PRECISION, ACC) - mean) * scale
        n3 = (_times(p3, filters, PRECISION, ACC) - mean) * scale
        u0 = _times(p0, direction, PRECISION, ACC)
        u1 = _times(p1, direction, PRECISION, ACC)
        u2 = _times(p2, direction, PRECISION, ACC)
        u3 = _times(p3, direction, PRECISION, ACC)
        is0, is1, is2, is3 = peak_of(n0, n1, n2, n3, gain, shift, whole)
        su += (u0 + u1) + (u2 + u3)
        sv += (u0 * n0 + u1 * n1) + (u2 * n2 + u3 * n3)
        sx += pick(is0, is1, is2, is3, u0, u1, u2, u3) * rows_of(gz, pooled, whole, C, ACC)
    store_sums(partial, su, sv, sx, task, C)


@triton.jit
def stem_pull_back_again(
    gz, x, weight, v, c, b, moments, sums, second, gamma, beta, ggz, gfilters, ggamma, stride, v_stride,
    gamma_stride, beta_stride, c_stride, b_stride, cells, count, height, width, eps,
    C: tl.constexpr, BLOCK: tl.constexpr, INPUTS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    task = tl.program_id(1).to(tl.int64)
    pixels = count * height * width
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, C, ACC
    )
    factor, by_n, by_1, on_u, on_a, on_n, on_1 = second_coefficients(
        c, b, sums, second, ggamma, part == 0, c_stride, b_stride, gain, scale, task, pixels, C, ACC
    )
    filters = _filters(weight, task, stride, C, INPUTS, DEPTH)
    direction = _filters(v, task, v_stride, C, INPUTS, DEPTH)
    x = _images(x, task, count, height, width, INPUTS)
    gz += task * count * (height // 2) * (width // 2) * C
    ggz += task * count * (height // 2) * (width // 2) * C
    gw = tl.zeros((C, DEPTH), ACC)
    for start in range(part * BLOCK, cells, parts * BLOCK):
        first, inside, right, below, pooled = cells_of(start + tl.arange(0, BLOCK), cells, height, width)
        whole = right & below
        p0, p1, p2, p3 = _window(x, first, inside, right, below, height, width, INPUTS, DEPTH)
        n0 = (_times(p0, filters, PRECISION, ACC) - mean) * scale
        n1 = (_times(p1, filters, PRECISION, ACC) - mean) * scale
        n2 = (_times(p2, filters, PRECISION, ACC) - mean) * scale
        n3 = (_times(p3, filters, PRECISION, ACC) - mean) * scale
        is0, is1, is2, is3 = peak_of(n0, n1, n2, n3, gain, shift, whole)
        slope = on_a * rows_of(gz, pooled, whole, C, ACC)
        u = _times(p0, direction, PRECISION, ACC)
        there = tl.where(is0, factor * u + by_n * n0 + by_1, 0.0)
        gw = _onto(gw, on_u * u + tl.where(is0, slope, 0.0) + on_n * n0 + on_1, p0, PRECISION, ACC)
        u = _times(p1, direction, PRECISION, ACC)
        there += tl.where(is1, factor * u + by_n * n1 + by_1, 0.0)
        gw = _onto(gw, on_u * u + tl.where(is1, slope, 0.0) + on_n * n1 + on_1, p1, PRECISION, ACC)
        u = _times(p2, direction, PRECISION, ACC)
        there += tl.where(is2, factor * u + by_n * n2 + by_1, 0.0)
        gw = _onto(gw, on_u * u + tl.where(is2, slope, 0.0) + on_n * n2 + on_1, p2, PRECISION, ACC)
        u = _times(p3, direction, PRECISION, ACC)
        there += tl.where(is3, factor * u + by_n * n3 + by_1, 0.0)
        gw = _onto(gw, on_u * u + tl.where(is3, slope, 0.0) + on_n * n3 + on_1, p3, PRECISION, ACC)
        put(ggz, pooled, whole, there, C)
    _store_filters(gfilters, gw, task, C, INPUTS, DEPTH)
