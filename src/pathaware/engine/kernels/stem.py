"""The first conv block of a network as one operation on images, with no intermediate result stored.

Images have few channels, so the convolution's output is many times larger than its input, and cheaper to
compute than to read. Every pass therefore recomputes the pixels that it needs, and sums the gradients of the
filters immediately. Images are data and get no gradient. The mathematics is that of `normalisation`, with u =
conv(x, v) for a direction v of the filters.

Images are padded by one pixel, and to even sides: `[T, N, I, H + 2, W + 2]`. Then the 9·I values that a pixel
needs lie at fixed distances, and one matrix product with the filters `[O, 9·I]` gives its channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from pathaware.engine.kernels.launch import (
    accumulator,
    blocks,
    dot_precision,
    empty,
    few_parts,
    is_constant,
    join_moments,
    store_moments,
    stored_channels,
    sum_parts,
)
from pathaware.engine.kernels.normalisation import first_sums
from pathaware.engine.kernels.windows import (
    cells_of,
    channel_values,
    gradient_of,
    hvp_coefficients,
    hvp_of,
    load_sum,
    peak_of,
    per_pixel,
    pick,
    put,
    rows_of,
    store_row,
    store_sums,
    tangent_coefficients,
)

_PARTS = 1056
"""Number of parts of a sum: eight programs per multiprocessor of an H200."""

_BLOCK = 16
"""Number of windows that a program computes at once."""


@dataclass(frozen=True)
class Images:
    """Images of T tasks, padded for the kernels, and their size without padding."""

    stored: Tensor
    height: int
    width: int

    @classmethod
    def of(cls, x: Tensor) -> Images:
        """Pad `x [T, N, I, H, W]`."""
        height, width = x.shape[-2:]
        return cls(F.pad(x, (1, 1 + width % 2, 1, 1 + height % 2)), height, width)

    @property
    def count(self) -> int:
        return self.stored.shape[1]

    @property
    def cells(self) -> int:
        """Number of windows per task, including those that are cut off."""
        return self.count * blocks(self.height, 2) * blocks(self.width, 2)

    def sizes(self) -> tuple[int, int, int]:
        return self.count, self.height, self.width


def moments_of(images: Images, weight: Tensor) -> Tensor:
    """Mean and variance of each channel of conv(x, w): `[T, 2, C]`."""
    tasks, channels = len(weight), stored_channels(weight.shape[1])
    pixels = images.count * images.height * images.width
    rows = 128
    tiles = blocks(pixels, rows)
    partial = empty(weight, tasks, 2, channels, tiles, dtype=accumulator(images.stored)[0])
    stem_moments_kernel[(tiles, tasks)](
        images.stored, weight, partial, weight.stride(0), pixels, *images.sizes(),
        ROWS=rows, **_settings(images, weight),
    )  # fmt: skip
    return join_moments(partial, pixels, rows)


@dataclass(frozen=True)
class FirstBlock:
    """A first block: its images, filters `[T, O, I, 3, 3]`, and the moments, γ, β and ε of its batch norm."""

    images: Images
    weight: Tensor
    moments: Tensor
    gamma: Tensor
    beta: Tensor
    eps: float

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return self.images.stored, self.weight, self.moments, self.gamma, self.beta

    def parts(self) -> int:
        """Number of parts of a sum over all windows."""
        return min(_PARTS // len(self.weight) + 1, blocks(self.images.cells, _BLOCK))

    def sizes(self) -> tuple[float, ...]:
        """Strides, sizes and ε, in the order of the kernels."""
        strides = self.weight.stride(0), self.gamma.stride(0), self.beta.stride(0)
        return *strides, self.images.cells, *self.images.sizes(), self.eps

    def settings(self) -> dict[str, object]:
        """Arguments of all kernels that pass over windows."""
        constant = {"BLOCK": _BLOCK, "CONSTANT": is_constant(self.moments)}
        return {**_settings(self.images, self.weight), **constant}


def normalise(block: FirstBlock) -> tuple[Tensor, Tensor]:
    """z and ŷ at each window's maximum, both `[T, N, H/2, W/2, C]`."""
    images, tasks = block.images, len(block.weight)
    count, height, width = images.sizes()
    z = empty(images.stored, tasks, count, height // 2, width // 2, block.moments.shape[-1])
    peaks = torch.empty_like(z)
    stem_normalise_kernel[(blocks(images.cells, _BLOCK), tasks)](
        *block.operands, z, peaks, *block.sizes(), **block.settings()
    )
    return z, peaks


def backward(
    block: FirstBlock, gz: Tensor, peaks: Tensor, gw: Tensor, ggamma: Tensor, gbeta: Tensor
) -> Tensor:
    """The parts `[T, parts, 2, C]` of A and B; writes the gradients of the filters, γ and β."""
    sums, parts = first_sums(gz, peaks, block.gamma, block.beta), block.parts()
    filters = empty(gz, len(gz), parts, *block.weight.shape[1:], dtype=accumulator(gz)[0])
    stem_backward_kernel[(parts, len(gz))](
        gz, *block.operands, sums, filters, ggamma, gbeta, *block.sizes(), ggamma.stride(0), sums.shape[1],
        SUMS=triton.next_power_of_2(sums.shape[1]), **block.settings(),
    )  # fmt: skip
    sum_parts(filters, out=gw)
    return sums


def tangent(block: FirstBlock, v: Tensor, c: Tensor, b: Tensor, gz: Tensor) -> tuple[Tensor, Tensor]:
    """dz for changes v of the filters, c of γ and b of β, and the parts `[T, parts, 3, C]` of U, V and X."""
    tasks, parts = len(gz), block.parts()
    partial = empty(gz, tasks, parts, 3, gz.shape[-1], dtype=accumulator(gz)[0])
    stem_sum_second_kernel[(parts, tasks)](
        gz, v, *block.operands, partial, *block.sizes(), v.stride(0), **block.settings()
    )
    second, dz = few_parts(partial), empty(gz, *gz.shape)
    stem_tangent_kernel[(blocks(block.images.cells, _BLOCK), tasks)](
        v, c, b, *block.operands, second, dz, *block.sizes(), v.stride(0), c.stride(0), b.stride(0),
        second.shape[1], SECOND=triton.next_power_of_2(second.shape[1]), **block.settings(),
    )  # fmt: skip
    return dz, second


def hvp(
    block: FirstBlock, dgz: Tensor | None, v: Tensor, c: Tensor, gz: Tensor, peaks: Tensor, sums: Tensor,
    second: Tensor, gw: Tensor, ggamma: Tensor, gbeta: Tensor,
) -> None:  # fmt: skip
    """Writes the changes of the gradients of the filters, γ and β, for a change `dgz` of gz, if any."""
    more = sums if dgz is None else first_sums(dgz, peaks, block.gamma, block.beta)
    parts = block.parts()
    filters = empty(gz, len(gz), parts, *block.weight.shape[1:], dtype=accumulator(gz)[0])
    stem_hvp_kernel[(parts, len(gz))](
        gz if dgz is None else dgz, gz, v, c, *block.operands, sums, second, more, filters, ggamma, gbeta,
        *block.sizes(), v.stride(0), c.stride(0), ggamma.stride(0), sums.shape[1], second.shape[1],
        more.shape[1], SUMS=triton.next_power_of_2(sums.shape[1]),
        SECOND=triton.next_power_of_2(second.shape[1]),
        MORE=0 if dgz is None else triton.next_power_of_2(more.shape[1]), **block.settings(),
    )  # fmt: skip
    sum_parts(filters, out=gw)


def _settings(images: Images, weight: Tensor) -> dict[str, object]:
    """Arguments that all kernels below share."""
    inputs = images.stored.shape[2]
    return {
        "WIDTH": weight.shape[1],
        "C": stored_channels(weight.shape[1]),
        "INPUTS": inputs,
        "DEPTH": max(16, triton.next_power_of_2(9 * inputs)),
        "PRECISION": dot_precision(images.stored),
        "ACC": accumulator(images.stored)[1],
    }


@triton.jit
def _filters(
    weight, task, stride, WIDTH: tl.constexpr, C: tl.constexpr, INPUTS: tl.constexpr, DEPTH: tl.constexpr
):
    """A task's filters as `[C, DEPTH]`, zero beyond the first WIDTH rows and 9·I columns."""
    k = tl.arange(0, DEPTH)
    c = tl.arange(0, C)
    at = weight + task * stride + c[:, None] * (9 * INPUTS) + k[None, :]
    return tl.load(at, mask=(c < WIDTH)[:, None] & (k < 9 * INPUTS)[None, :], other=0.0)


@triton.jit
def _patches(x, corner, ok, height, width, INPUTS: tl.constexpr, DEPTH: tl.constexpr):
    """The 3×3 neighbourhoods of pixels, `[BLOCK, DEPTH]`; `corner` is where each begins in the images."""
    k = tl.arange(0, DEPTH)
    across = width + width % 2 + 2
    down = height + height % 2 + 2
    at = (k // 9) * (down * across) + (k % 9) // 3 * across + k % 3
    return tl.load(x + corner[:, None] + at[None, :], mask=ok[:, None] & (k < 9 * INPUTS)[None, :], other=0.0)


@triton.jit
def corner_of(first, height, width, INPUTS: tl.constexpr):
    """Offset of the neighbourhood of pixel number `first` of a task in its padded images."""
    across = width + width % 2 + 2
    down = height + height % 2 + 2
    image = first // (height * width)
    row = first // width % height
    return image * (INPUTS * down * across) + row * across + first % width


@triton.jit
def _window(
    x, first, inside, right, below, height, width, INPUTS: tl.constexpr, DEPTH: tl.constexpr
):  # fmt: skip
    """The neighbourhoods of the four pixels of each window."""
    corner = corner_of(first, height, width, INPUTS)
    across = width + width % 2 + 2
    p0 = _patches(x, corner, inside, height, width, INPUTS, DEPTH)
    p1 = _patches(x, corner + 1, right, height, width, INPUTS, DEPTH)
    p2 = _patches(x, corner + across, below, height, width, INPUTS, DEPTH)
    p3 = _patches(x, corner + across + 1, right & below, height, width, INPUTS, DEPTH)
    return p0, p1, p2, p3


@triton.jit
def _store_filters(
    partial, gw, task, WIDTH: tl.constexpr, C: tl.constexpr, INPUTS: tl.constexpr, DEPTH: tl.constexpr
):
    """Stores this program's part of the filters' gradient."""
    k = tl.arange(0, DEPTH)
    c = tl.arange(0, C)
    at = (task * tl.num_programs(0) + tl.program_id(0)) * WIDTH + c
    mask = (c < WIDTH)[:, None] & (k < 9 * INPUTS)[None, :]
    tl.store(partial + at[:, None] * (9 * INPUTS) + k[None, :], gw, mask=mask)


@triton.jit
def images_of(x, task, count, height, width, INPUTS: tl.constexpr):
    """Pointer to a task's padded images."""
    return x + task * count * (INPUTS * (height + height % 2 + 2) * (width + width % 2 + 2))


@triton.jit
def _times(patches, filters, PRECISION: tl.constexpr, ACC: tl.constexpr):
    return tl.dot(patches, tl.trans(filters.to(patches.dtype)), input_precision=PRECISION, out_dtype=ACC)


@triton.jit
def _onto(filters, grad, patches, PRECISION: tl.constexpr, ACC: tl.constexpr):
    """Adds Σ over pixels of grad ⊗ patch to the filters' gradient."""
    return tl.dot(
        tl.trans(grad.to(patches.dtype)), patches, filters, input_precision=PRECISION, out_dtype=ACC
    )


@triton.jit
def stem_moments_kernel(
    x, weight, partial, stride, pixels, count, height, width,
    WIDTH: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, INPUTS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = m < pixels
    x = images_of(x, task, count, height, width, INPUTS)
    patches = _patches(x, corner_of(m, height, width, INPUTS), inside, height, width, INPUTS, DEPTH)
    y = _times(patches, _filters(weight, task, stride, WIDTH, C, INPUTS, DEPTH), PRECISION, ACC)
    store_moments(partial, y, inside, pixels, task, tl.arange(0, C), C, ROWS)


@triton.jit
def stem_normalise_kernel(
    x, weight, moments, gamma, beta, z, peaks, stride, gamma_stride, beta_stride, cells, count, height, width,
    eps, WIDTH: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, INPUTS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr, CONSTANT: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, WIDTH, C, ACC, CONSTANT
    )
    filters = _filters(weight, task, stride, WIDTH, C, INPUTS, DEPTH)
    x = images_of(x, task, count, height, width, INPUTS)
    first, _, right, below, pooled = cells_of(
        tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), cells, height, width
    )
    corner = corner_of(first, height, width, INPUTS)
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
def stem_backward_kernel(
    gz, x, weight, moments, gamma, beta, sums, gfilters, ggamma, gbeta, stride, gamma_stride, beta_stride,
    cells, count, height, width, eps, out_stride, sums_parts,
    WIDTH: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, INPUTS: tl.constexpr,
    DEPTH: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr, SUMS: tl.constexpr,
    CONSTANT: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, WIDTH, C, ACC, CONSTANT
    )
    filters = _filters(weight, task, stride, WIDTH, C, INPUTS, DEPTH)
    x = images_of(x, task, count, height, width, INPUTS)
    gz += task * count * (height // 2) * (width // 2) * C
    pixels = count * height * width
    a = load_sum(sums, 0, 2, sums_parts, task, C, SUMS)
    b = load_sum(sums, 1, 2, sums_parts, task, C, SUMS)
    if part == 0:
        store_row(gbeta + task * out_stride, a, WIDTH, C)
        store_row(ggamma + task * out_stride, b, WIDTH, C)
    a = per_pixel(a, pixels, CONSTANT)
    b = per_pixel(b, pixels, CONSTANT)
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
        grad = rows_of(gz, pooled, whole, C, ACC)
        # patches of pixels that do not exist are zero, and add nothing
        gw = _onto(gw, factor * gradient_of(is0, grad, n0, a, b, CONSTANT), p0, PRECISION, ACC)
        gw = _onto(gw, factor * gradient_of(is1, grad, n1, a, b, CONSTANT), p1, PRECISION, ACC)
        gw = _onto(gw, factor * gradient_of(is2, grad, n2, a, b, CONSTANT), p2, PRECISION, ACC)
        gw = _onto(gw, factor * gradient_of(is3, grad, n3, a, b, CONSTANT), p3, PRECISION, ACC)
    _store_filters(gfilters, gw, task, WIDTH, C, INPUTS, DEPTH)


@triton.jit
def stem_sum_second_kernel(
    gz, v, x, weight, moments, gamma, beta, partial, stride, gamma_stride, beta_stride, cells, count, height,
    width, eps, v_stride,
    WIDTH: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, INPUTS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr, CONSTANT: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, WIDTH, C, ACC, CONSTANT
    )
    filters = _filters(weight, task, stride, WIDTH, C, INPUTS, DEPTH)
    direction = _filters(v, task, v_stride, WIDTH, C, INPUTS, DEPTH)
    x = images_of(x, task, count, height, width, INPUTS)
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
        if not CONSTANT:
            su += (u0 + u1) + (u2 + u3)
            sv += (u0 * n0 + u1 * n1) + (u2 * n2 + u3 * n3)
        sx += pick(is0, is1, is2, is3, u0, u1, u2, u3) * rows_of(gz, pooled, whole, C, ACC)
    store_sums(partial, su, sv, sx, task, C)


@triton.jit
def stem_tangent_kernel(
    v, c, b, x, weight, moments, gamma, beta, second, dz, stride, gamma_stride, beta_stride, cells, count,
    height, width, eps, v_stride, c_stride, b_stride, second_parts,
    WIDTH: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, INPUTS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr, SECOND: tl.constexpr, CONSTANT: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, WIDTH, C, ACC, CONSTANT
    )
    pixels = count * height * width
    factor, by_n, by_1 = tangent_coefficients(
        c, b, second, second_parts, c_stride, b_stride, gain, scale, task, pixels, WIDTH, C, SECOND, ACC,
        CONSTANT,
    )  # fmt: skip
    filters = _filters(weight, task, stride, WIDTH, C, INPUTS, DEPTH)
    direction = _filters(v, task, v_stride, WIDTH, C, INPUTS, DEPTH)
    x = images_of(x, task, count, height, width, INPUTS)
    first, inside, right, below, pooled = cells_of(
        tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), cells, height, width
    )
    whole = right & below
    p0, p1, p2, p3 = _window(x, first, inside, right, below, height, width, INPUTS, DEPTH)
    n0 = (_times(p0, filters, PRECISION, ACC) - mean) * scale
    n1 = (_times(p1, filters, PRECISION, ACC) - mean) * scale
    n2 = (_times(p2, filters, PRECISION, ACC) - mean) * scale
    n3 = (_times(p3, filters, PRECISION, ACC) - mean) * scale
    is0, is1, is2, is3 = peak_of(n0, n1, n2, n3, gain, shift, whole)
    there = tl.where(is0, factor * _times(p0, direction, PRECISION, ACC) + by_n * n0 + by_1, 0.0)
    there += tl.where(is1, factor * _times(p1, direction, PRECISION, ACC) + by_n * n1 + by_1, 0.0)
    there += tl.where(is2, factor * _times(p2, direction, PRECISION, ACC) + by_n * n2 + by_1, 0.0)
    there += tl.where(is3, factor * _times(p3, direction, PRECISION, ACC) + by_n * n3 + by_1, 0.0)
    put(dz + task * count * (height // 2) * (width // 2) * C, pooled, whole, there, C)


@triton.jit
def stem_hvp_kernel(
    dgz, gz, v, c, x, weight, moments, gamma, beta, sums, second, more, gfilters, ggamma, gbeta, stride,
    gamma_stride, beta_stride, cells, count, height, width, eps, v_stride, c_stride, out_stride, sums_parts,
    second_parts, more_parts,
    WIDTH: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, INPUTS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr, SUMS: tl.constexpr, SECOND: tl.constexpr, MORE: tl.constexpr,
    CONSTANT: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    task = tl.program_id(1).to(tl.int64)
    pixels = count * height * width
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, WIDTH, C, ACC, CONSTANT
    )
    factor, on_u, on_a, on_n, on_1 = hvp_coefficients(
        c, sums, second, more, ggamma, gbeta, part == 0, c_stride, out_stride, gain, scale, task, pixels,
        sums_parts, second_parts, more_parts, WIDTH, C, SUMS, SECOND, MORE, ACC, CONSTANT,
    )  # fmt: skip
    filters = _filters(weight, task, stride, WIDTH, C, INPUTS, DEPTH)
    direction = _filters(v, task, v_stride, WIDTH, C, INPUTS, DEPTH)
    x = images_of(x, task, count, height, width, INPUTS)
    gz += task * count * (height // 2) * (width // 2) * C
    dgz += task * count * (height // 2) * (width // 2) * C
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
        grad = on_a * rows_of(gz, pooled, whole, C, ACC)
        if MORE > 0:
            grad += factor * rows_of(dgz, pooled, whole, C, ACC)
        u = _times(p0, direction, PRECISION, ACC)
        gw = _onto(gw, hvp_of(u, is0, grad, n0, on_u, on_n, on_1, CONSTANT), p0, PRECISION, ACC)
        u = _times(p1, direction, PRECISION, ACC)
        gw = _onto(gw, hvp_of(u, is1, grad, n1, on_u, on_n, on_1, CONSTANT), p1, PRECISION, ACC)
        u = _times(p2, direction, PRECISION, ACC)
        gw = _onto(gw, hvp_of(u, is2, grad, n2, on_u, on_n, on_1, CONSTANT), p2, PRECISION, ACC)
        u = _times(p3, direction, PRECISION, ACC)
        gw = _onto(gw, hvp_of(u, is3, grad, n3, on_u, on_n, on_1, CONSTANT), p3, PRECISION, ACC)
    _store_filters(gfilters, gw, task, WIDTH, C, INPUTS, DEPTH)
