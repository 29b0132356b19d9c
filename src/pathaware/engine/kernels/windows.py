"""Shared by kernels that pass over 2×2 windows of all channels; the symbols are those of `normalisation`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def channel_values(
    moments, gamma, beta, gamma_stride, beta_stride, task, eps, WIDTH: tl.constexpr, C: tl.constexpr,
    ACC: tl.constexpr, CONSTANT: tl.constexpr = False,
):  # fmt: skip
    """μ, r, γ, β of every channel of a task; γ and β have WIDTH entries, and are zero beyond them.

    CONSTANT moments `[2, C]` are those of all tasks.
    """
    c = tl.arange(0, C)
    if not CONSTANT:
        moments += task * 2 * C
    mean = tl.load(moments + c).to(ACC)
    scale = 1.0 / tl.sqrt(tl.load(moments + C + c).to(ACC) + eps)
    gain = load_row(gamma + task * gamma_stride, WIDTH, C).to(ACC)
    shift = load_row(beta + task * beta_stride, WIDTH, C).to(ACC)
    return mean[None, :], scale[None, :], gain, shift


@triton.jit
def load_row(data, WIDTH: tl.constexpr, C: tl.constexpr):
    """The first WIDTH of C entries as a row, zero beyond them."""
    c = tl.arange(0, C)
    return tl.load(data + c, mask=c < WIDTH, other=0.0)[None, :]


@triton.jit
def store_row(data, row, WIDTH: tl.constexpr, C: tl.constexpr):
    """Stores the first WIDTH of C entries of a row."""
    c = tl.arange(0, C)[None, :]
    tl.store(data + c, row, mask=c < WIDTH)


@triton.jit
def rows_of(data, at, ok, C: tl.constexpr, ACC: tl.constexpr):
    """Rows `at` of `[…, C]` as a block, zero where not `ok`."""
    return tl.load(data + at[:, None] * C + tl.arange(0, C)[None, :], mask=ok[:, None], other=0.0).to(ACC)


@triton.jit
def put(data, at, ok, value, C: tl.constexpr):
    """Stores a block in rows `at` of `[…, C]`, where `ok`."""
    at = data + at[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(at, value.to(data.dtype.element_ty), mask=ok[:, None])


@triton.jit
def cells_of(w, cells, height, width):
    """Window w of a task's images: its first pixel, which others exist, and its index in the pooled image.
    If a side is odd, the last windows are cut off and have no maximum."""
    across = (width + 1) // 2
    down = (height + 1) // 2
    column = w % across
    row = (w // across) % down
    image = w // (across * down)
    inside = w < cells
    right = inside & (2 * column + 1 < width)
    below = inside & (2 * row + 1 < height)
    first = (image * height + 2 * row) * width + 2 * column
    pooled = (image * (height // 2) + row) * (width // 2) + column
    return first, inside, right, below, pooled


@triton.jit
def peak_of(n0, n1, n2, n3, gain, shift, whole):
    """Four masks of where a window's maximum is, if positive; the first of equal values, as in PyTorch."""
    a0 = n0 * gain + shift
    a1 = n1 * gain + shift
    a2 = n2 * gain + shift
    a3 = n3 * gain + shift
    top = tl.maximum(tl.maximum(a0, a1), tl.maximum(a2, a3))
    on = whole[:, None] & (top > 0)
    is0 = on & (a0 == top)
    is1 = on & (a1 == top) & (a0 != top)
    is2 = on & (a2 == top) & (a0 != top) & (a1 != top)
    is3 = on & (a0 != top) & (a1 != top) & (a2 != top)
    return is0, is1, is2, is3


@triton.jit
def passed_on(n0, n1, n2, n3, gain, shift, inside, right, below, POOL: tl.constexpr):
    """Four masks of where the gradient of a window's output goes: to the maximum, or, without a max-pool, to
    every pixel that the ReLU passes on."""
    whole = right & below
    if POOL == 1:
        is0, is1, is2, is3 = peak_of(n0, n1, n2, n3, gain, shift, whole)
    else:
        if POOL == 2:
            inside = whole
            right = whole
            below = whole
        is0 = inside[:, None] & (n0 * gain + shift > 0)
        is1 = right[:, None] & (n1 * gain + shift > 0)
        is2 = below[:, None] & (n2 * gain + shift > 0)
        is3 = whole[:, None] & (n3 * gain + shift > 0)
    return is0, is1, is2, is3


@triton.jit
def outputs_of(
    data, first, pooled, inside, right, below, width, C: tl.constexpr, ACC: tl.constexpr, POOL: tl.constexpr
):
    """For each pixel of a window, the value of `data` at the output that the pixel contributes to, times its
    weight there: one, or a quarter in an average."""
    if POOL == 0:
        v0, v1, v2, v3 = window_of(data, first, inside, right, below, width, C, ACC)
    else:
        v0 = rows_of(data, pooled, right & below, C, ACC)
        if POOL == 2:
            v0 = v0 * 0.25
        v1 = v0
        v2 = v0
        v3 = v0
    return v0, v1, v2, v3


@triton.jit
def put_outputs(
    data, first, pooled, inside, right, below, width, is0, is1, is2, is3, t0, t1, t2, t3,
    C: tl.constexpr, POOL: tl.constexpr,
):  # fmt: skip
    """Stores the outputs that the values t of a window's pixels, where they are passed on, contribute to."""
    if POOL == 0:
        put(data, first, inside, tl.where(is0, t0, 0.0), C)
        put(data, first + 1, right, tl.where(is1, t1, 0.0), C)
        put(data, first + width, below, tl.where(is2, t2, 0.0), C)
        put(data, first + width + 1, right & below, tl.where(is3, t3, 0.0), C)
    else:
        total = pick(is0, is1, is2, is3, t0, t1, t2, t3)
        if POOL == 2:
            total = total * 0.25
        put(data, pooled, right & below, total, C)


@triton.jit
def load_sum(sums, which: tl.constexpr, of: tl.constexpr, parts, task, C: tl.constexpr, PARTS: tl.constexpr):
    """One of the sums `[T, parts, of, C]`, added over the parts, as a row."""
    part = tl.arange(0, PARTS)
    at = sums + ((task * parts + part) * of + which)[:, None] * C + tl.arange(0, C)[None, :]
    return tl.sum(tl.load(at, mask=(part < parts)[:, None], other=0.0), 0)[None, :]


@triton.jit
def per_pixel(total, pixels, CONSTANT: tl.constexpr):
    """total/M, which enters derivatives through the moments of a batch; zero if the moments are constant."""
    return tl.zeros_like(total) if CONSTANT else total / pixels


@triton.jit
def tangent_coefficients(
    c, b, second, second_parts, c_stride, b_stride, gain, scale, task, pixels, WIDTH: tl.constexpr,
    C: tl.constexpr, PARTS: tl.constexpr, ACC: tl.constexpr, CONSTANT: tl.constexpr,
):  # fmt: skip
    """dz = factor u + by_n ŷ + by_1, at the maximum, with these coefficients for each channel."""
    to_gain = load_row(c + task * c_stride, WIDTH, C).to(ACC)
    to_shift = load_row(b + task * b_stride, WIDTH, C).to(ACC)
    factor = gain * scale
    sv = load_sum(second, 1, 3, second_parts, task, C, PARTS)
    by_n = to_gain - per_pixel(factor * sv, pixels, CONSTANT)
    su = load_sum(second, 0, 3, second_parts, task, C, PARTS)
    by_1 = to_shift - per_pixel(factor * su, pixels, CONSTANT)
    return factor, by_n, by_1


@triton.jit
def hvp_coefficients(
    c, sums, second, more, ggamma, gbeta, store, c_stride, out_stride, gain, scale, task, pixels, sums_parts,
    second_parts, more_parts, WIDTH: tl.constexpr, C: tl.constexpr, SUMS: tl.constexpr,
    SECOND: tl.constexpr, MORE: tl.constexpr, ACC: tl.constexpr, CONSTANT: tl.constexpr,
):  # fmt: skip
    """d(gy) = on_u u + on_a a + factor da + on_n ŷ + on_1, with these coefficients for each channel.

    Stores d(gγ) = r W + Σ da ŷ and d(gβ) = Σ da. MORE is 0 if there is no da.
    """
    sa = load_sum(sums, 0, 2, sums_parts, task, C, SUMS)
    sb = load_sum(sums, 1, 2, sums_parts, task, C, SUMS)
    su = load_sum(second, 0, 3, second_parts, task, C, SECOND)
    sv = load_sum(second, 1, 3, second_parts, task, C, SECOND)
    sx = load_sum(second, 2, 3, second_parts, task, C, SECOND)
    weight = sx - per_pixel(su * sa + sv * sb, pixels, CONSTANT)
    da = sa * 0
    db = sa * 0
    if MORE > 0:
        da = load_sum(more, 0, 2, more_parts, task, C, MORE)
        db = load_sum(more, 1, 2, more_parts, task, C, MORE)
    if store:
        store_row(ggamma + task * out_stride, scale * weight + db, WIDTH, C)
        store_row(gbeta + task * out_stride, da, WIDTH, C)
    factor = gain * scale
    on_u = per_pixel(-scale * factor * sb, pixels, CONSTANT)
    to_gain = load_row(c + task * c_stride, WIDTH, C).to(ACC)
    on_a = scale * (to_gain - per_pixel(factor * sv, pixels, CONSTANT))
    on_n = per_pixel(-(on_u * sv + on_a * sb + factor * (scale * weight + db)), pixels, CONSTANT)
    on_1 = per_pixel(-(on_u * su + on_a * sa + factor * da), pixels, CONSTANT)
    return factor, on_u, on_a, on_n, on_1


@triton.jit
def gradient_of(passed, a, n, a_mean, b_mean, CONSTANT: tl.constexpr):
    """a − A/M − ŷ B/M at one pixel of each window, where `a` counts if it is `passed` on."""
    a = tl.where(passed, a, 0.0)
    if not CONSTANT:
        a = a - a_mean - n * b_mean
    return a


@triton.jit
def hvp_of(u, passed, a, n, on_u, on_n, on_1, CONSTANT: tl.constexpr):
    """d(gy) at one pixel of each window, where the terms `a` count if they are `passed` on.

    With constant moments no other terms are left, and Triton does not even compute u.
    """
    a = tl.where(passed, a, 0.0)
    if not CONSTANT:
        a = on_u * u + a + on_n * n + on_1
    return a


@triton.jit
def window_of(data, first, inside, right, below, width, C: tl.constexpr, ACC: tl.constexpr):
    """The four pixels of each window, `[BLOCK, C]` each."""
    v0 = rows_of(data, first, inside, C, ACC)
    v1 = rows_of(data, first + 1, right, C, ACC)
    v2 = rows_of(data, first + width, below, C, ACC)
    v3 = rows_of(data, first + width + 1, right & below, C, ACC)
    return v0, v1, v2, v3


@triton.jit
def normalised_of(
    y, first, inside, right, below, width, mean, scale, C: tl.constexpr, ACC: tl.constexpr
):  # fmt: skip
    """ŷ at the four pixels of each window."""
    v0, v1, v2, v3 = window_of(y, first, inside, right, below, width, C, ACC)
    return (v0 - mean) * scale, (v1 - mean) * scale, (v2 - mean) * scale, (v3 - mean) * scale


@triton.jit
def pick(is0, is1, is2, is3, v0, v1, v2, v3):
    """The value at each window's maximum, zero where there is none."""
    found = tl.where(is0, v0, 0.0) + tl.where(is1, v1, 0.0)
    return found + tl.where(is2, v2, 0.0) + tl.where(is3, v3, 0.0)


@triton.jit
def store_sums(partial, su, sv, sx, task, C: tl.constexpr):
    """Stores this program's part of U, V and X."""
    at = partial + (task * tl.num_programs(0) + tl.program_id(0)) * 3 * C + tl.arange(0, C)
    tl.store(at, tl.sum(su, 0))
    tl.store(at + C, tl.sum(sv, 0))
    tl.store(at + 2 * C, tl.sum(sx, 0))
