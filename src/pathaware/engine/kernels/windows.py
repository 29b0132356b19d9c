"""Shared by kernels that pass over 2×2 windows of all channels; the symbols are those of `normalisation`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def channel_values(
    moments, gamma, beta, gamma_stride, beta_stride, task, eps, C: tl.constexpr, ACC: tl.constexpr
):
    """μ, r, γ, β of every channel of a task."""
    c = tl.arange(0, C)
    mean = tl.load(moments + task * 2 * C + c).to(ACC)
    scale = 1.0 / tl.sqrt(tl.load(moments + (task * 2 + 1) * C + c).to(ACC) + eps)
    gain = tl.load(gamma + task * gamma_stride + c).to(ACC)
    shift = tl.load(beta + task * beta_stride + c).to(ACC)
    return mean[None, :], scale[None, :], gain[None, :], shift[None, :]


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
def load_sum(sums, which: tl.constexpr, of: tl.constexpr, task, C: tl.constexpr):
    """One of the sums `[T, of, C]`, as a row."""
    return tl.load(sums + (task * of + which) * C + tl.arange(0, C))[None, :]


@triton.jit
def second_coefficients(
    c, b, sums, second, ggamma, store, c_stride, b_stride, gain, scale, task, pixels,
    C: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The second derivative is linear in u, a, ŷ and 1, with these coefficients for each channel:

    ḡz = factor u + by_n ŷ + by_1, at the maximum;  ȳ = on_u u + on_a a + on_n ŷ + on_1.  Stores γ̄.
    """
    channel = tl.arange(0, C)[None, :]
    sa = load_sum(sums, 0, 2, task, C)
    sb = load_sum(sums, 1, 2, task, C)
    su = load_sum(second, 0, 3, task, C)
    sv = load_sum(second, 1, 3, task, C)
    weight = load_sum(second, 2, 3, task, C) - (su * sa + sv * sb) / pixels
    if store:
        tl.store(ggamma + task * C + channel, scale * weight)
    to_gain = tl.load(c + task * c_stride + channel).to(ACC)
    to_shift = tl.load(b + task * b_stride + channel).to(ACC)
    factor = gain * scale
    by_n = to_gain - factor * sv / pixels
    by_1 = to_shift - factor * su / pixels
    on_u = -scale * factor * sb / pixels
    on_a = scale * by_n
    on_n = -(on_u * sv + on_a * sb + factor * scale * weight) / pixels
    on_1 = -(on_u * su + on_a * sa) / pixels
    return factor, by_n, by_1, on_u, on_a, on_n, on_1


@triton.jit
def window_of(data, first, inside, right, below, width, C: tl.constexpr, ACC: tl.constexpr):
    """The four pixels of each window, `[BLOCK, C]` each."""
    v0 = rows_of(data, first, inside, C, ACC)
    v1 = rows_of(data, first + 1, right, C, ACC)
    v2 = rows_of(data, first + width, below, C, ACC)
    v3 = rows_of(data, first + width + 1, right & below, C, ACC)
    return v0, v1, v2, v3


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
