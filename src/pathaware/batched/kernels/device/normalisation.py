"""The passes of batch norm, ReLU and max-pool over stored pixels."""

from __future__ import annotations

import triton
import triton.language as tl

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
    window_of,
)


@triton.jit
def normalise(
    y, moments, gamma, beta, z, peaks, gamma_stride, beta_stride, windows, height, width, eps,
    C: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, C, ACC
    )
    w = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = w < windows
    across = width // 2
    down = height // 2
    first = ((w // (across * down)) * height + 2 * ((w // across) % down)) * width + 2 * (w % across)
    images = windows // (across * down)
    y += task * images * height * width * C
    n0 = (rows_of(y, first, ok, C, ACC) - mean) * scale
    n1 = (rows_of(y, first + 1, ok, C, ACC) - mean) * scale
    n2 = (rows_of(y, first + width, ok, C, ACC) - mean) * scale
    n3 = (rows_of(y, first + width + 1, ok, C, ACC) - mean) * scale
    high = tl.maximum(tl.maximum(n0, n1), tl.maximum(n2, n3))
    low = tl.minimum(tl.minimum(n0, n1), tl.minimum(n2, n3))
    best = tl.where(gain > 0, high, tl.where(gain < 0, low, n0))
    put(peaks + task * windows * C, w, ok, best, C)
    put(z + task * windows * C, w, ok, tl.maximum(best * gain + shift, 0.0), C)


@triton.jit
def sum_first(
    gz, peaks, gamma, beta, partial, gamma_stride, beta_stride, windows,
    C: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    task = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    gain = tl.load(gamma + task * gamma_stride + c).to(ACC)[None, :]
    shift = tl.load(beta + task * beta_stride + c).to(ACC)[None, :]
    gz += task * windows * C
    peaks += task * windows * C
    a = tl.zeros((BLOCK, C), ACC)
    b = tl.zeros((BLOCK, C), ACC)
    for first in range(part * BLOCK, windows, parts * BLOCK):
        w = first + tl.arange(0, BLOCK)
        ok = w < windows
        slope = rows_of(gz, w, ok, C, ACC)
        peak = rows_of(peaks, w, ok, C, ACC)
        slope = tl.where(peak * gain + shift > 0, slope, 0.0)
        a += slope
        b += slope * peak
    at = partial + ((task * parts + part) * 2) * C + c
    tl.store(at, tl.sum(a, 0))
    tl.store(at + C, tl.sum(b, 0))


@triton.jit
def pull_back(
    gz, y, moments, gamma, beta, sums, gy, gamma_stride, beta_stride, cells, images, height, width, eps,
    C: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, C, ACC
    )
    w = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, inside, right, below, pooled = cells_of(w, cells, height, width)
    corner = right & below
    pixels = images * height * width
    y += task * pixels * C
    gy += task * pixels * C
    gz += task * images * (height // 2) * (width // 2) * C
    n0, n1, n2, n3 = window_of(y, first, inside, right, below, width, C, ACC)
    n0 = (n0 - mean) * scale
    n1 = (n1 - mean) * scale
    n2 = (n2 - mean) * scale
    n3 = (n3 - mean) * scale
    is0, is1, is2, is3 = peak_of(n0, n1, n2, n3, gain, shift, corner)
    slope = rows_of(gz, pooled, corner, C, ACC)
    a = load_sum(sums, 0, 2, task, C) / pixels
    b = load_sum(sums, 1, 2, task, C) / pixels
    factor = gain * scale
    put(gy, first, inside, factor * (tl.where(is0, slope, 0.0) - a - n0 * b), C)
    put(gy, first + 1, right, factor * (tl.where(is1, slope, 0.0) - a - n1 * b), C)
    put(gy, first + width, below, factor * (tl.where(is2, slope, 0.0) - a - n2 * b), C)
    put(gy, first + width + 1, corner, factor * (tl.where(is3, slope, 0.0) - a - n3 * b), C)


@triton.jit
def sum_second(
    u, gz, y, moments, gamma, beta, partial, gamma_stride, beta_stride, cells, images, height, width, eps,
    C: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, C, ACC
    )
    y += task * images * height * width * C
    u += task * images * height * width * C
    gz += task * images * (height // 2) * (width // 2) * C
    su = tl.zeros((BLOCK, C), ACC)
    sv = tl.zeros((BLOCK, C), ACC)
    sx = tl.zeros((BLOCK, C), ACC)
    for start in range(part * BLOCK, cells, parts * BLOCK):
        first, inside, right, below, pooled = cells_of(start + tl.arange(0, BLOCK), cells, height, width)
        corner = right & below
        n0, n1, n2, n3 = window_of(y, first, inside, right, below, width, C, ACC)
        n0 = (n0 - mean) * scale
        n1 = (n1 - mean) * scale
        n2 = (n2 - mean) * scale
        n3 = (n3 - mean) * scale
        u0, u1, u2, u3 = window_of(u, first, inside, right, below, width, C, ACC)
        is0, is1, is2, is3 = peak_of(n0, n1, n2, n3, gain, shift, corner)
        su += (u0 + u1) + (u2 + u3)
        sv += (u0 * n0 + u1 * n1) + (u2 * n2 + u3 * n3)
        sx += pick(is0, is1, is2, is3, u0, u1, u2, u3) * rows_of(gz, pooled, corner, C, ACC)
    store_sums(partial, su, sv, sx, task, C)


@triton.jit
def pull_back_again(
    u, c, b, gz, y, moments, sums, second, gamma, beta, ggz, gy, ggamma, c_stride, b_stride, gamma_stride,
    beta_stride, cells, images, height, width, eps,
    C: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    pixels = images * height * width
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, C, ACC
    )
    factor, by_n, by_1, on_u, on_a, on_n, on_1 = second_coefficients(
        c,
        b,
        sums,
        second,
        ggamma,
        tl.program_id(0) == 0,
        c_stride,
        b_stride,
        gain,
        scale,
        task,
        pixels,
        C,
        ACC,
    )
    first, inside, right, below, pooled = cells_of(
        tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), cells, height, width
    )
    corner = right & below
    y += task * pixels * C
    u += task * pixels * C
    gy += task * pixels * C
    gz += task * images * (height // 2) * (width // 2) * C
    ggz += task * images * (height // 2) * (width // 2) * C
    n0, n1, n2, n3 = window_of(y, first, inside, right, below, width, C, ACC)
    n0 = (n0 - mean) * scale
    n1 = (n1 - mean) * scale
    n2 = (n2 - mean) * scale
    n3 = (n3 - mean) * scale
    u0, u1, u2, u3 = window_of(u, first, inside, right, below, width, C, ACC)
    is0, is1, is2, is3 = peak_of(n0, n1, n2, n3, gain, shift, corner)
    slope = on_a * rows_of(gz, pooled, corner, C, ACC)
    t0 = factor * u0 + by_n * n0 + by_1
    t1 = factor * u1 + by_n * n1 + by_1
    t2 = factor * u2 + by_n * n2 + by_1
    t3 = factor * u3 + by_n * n3 + by_1
    put(ggz, pooled, corner, pick(is0, is1, is2, is3, t0, t1, t2, t3), C)
    put(gy, first, inside, on_u * u0 + tl.where(is0, slope, 0.0) + on_n * n0 + on_1, C)
    put(gy, first + 1, right, on_u * u1 + tl.where(is1, slope, 0.0) + on_n * n1 + on_1, C)
    put(gy, first + width, below, on_u * u2 + tl.where(is2, slope, 0.0) + on_n * n2 + on_1, C)
    put(gy, first + width + 1, corner, on_u * u3 + tl.where(is3, slope, 0.0) + on_n * n3 + on_1, C)
