"""Batch norm, ReLU and 2×2 pooling of T tasks as one operation, with its first and second derivatives.

Per task and channel, with M pixels, ŷ = (y − μ) r and r = (σ² + ε)^(−½):

    z  = max over a window of relu(γ ŷ + β)                                            `normalise`
    gy = γ r (a − A/M − ŷ B/M),  A = Σ a,  B = Σ a ŷ,  gγ = B,  gβ = A                 `backward`

a is gz at the maximum of each window and zero elsewhere. d is the derivative along a direction in which y
changes by u, γ by c and β by b. With U = Σ u, V = Σ u ŷ, X = Σ u a, W = X − (U A + V B)/M, e = c − γ r V/M:

    dz     = γ r (u − U/M − ŷ V/M) + c ŷ + b, at the maximum                           `tangent`
    d(gy)  = γ r (da − Σ da/M − ŷ Σ da ŷ/M) + r e (a − A/M − ŷ B/M)
             − γ r² B/M (u − U/M − ŷ V/M) − γ r² W ŷ/M                                 `hvp`
    d(gγ)  = Σ da ŷ + r W,  d(gβ) = Σ da

With constant moments every term with 1/M vanishes, and U and V are not needed.

With an average pool, a is a quarter of gz wherever the ReLU passes it on; without a pool, all of gz.

Each takes two passes, sums first. A program takes whole windows of all channels, the four pixels of a window
in four registers, and finds the maximum again, which costs less than storing its position.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from pathaware.engine.kernels.launch import FEW, accumulator, blocks, empty, few_parts, is_constant
from pathaware.engine.kernels.windows import (
    cells_of,
    channel_values,
    gradient_of,
    hvp_coefficients,
    hvp_of,
    load_row,
    load_sum,
    normalised_of,
    outputs_of,
    passed_on,
    per_pixel,
    pick,
    put,
    put_outputs,
    rows_of,
    store_row,
    store_sums,
    tangent_coefficients,
    window_of,
)
from pathaware.models.traced import Pooling

_PARTS = 528
"""Number of parts of a sum: four programs per multiprocessor of an H200."""


POOLS: dict[Pooling, int] = {"none": 0, "max": 1, "average": 2}
"""The kinds of pooling, as kernels number them."""


@dataclass(frozen=True)
class Norm:
    """Batch norm of `y [T, N, H, W, C]`, ReLU and pooling: the moments, γ, β and ε."""

    y: Tensor
    moments: Tensor
    gamma: Tensor
    beta: Tensor
    eps: float
    pooling: Pooling = "max"

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return self.y, self.moments, self.gamma, self.beta

    @property
    def outputs(self) -> tuple[int, ...]:
        """The shape of z."""
        tasks, images, height, width, channels = self.y.shape
        by = 1 if self.pooling == "none" else 2
        return tasks, images, height // by, width // by, channels

    @property
    def cells(self) -> int:
        """Number of windows per task, including those that are cut off."""
        _, images, height, width, _ = self.y.shape
        return images * blocks(height, 2) * blocks(width, 2)

    def grid(self, block: int) -> tuple[int, int]:
        return blocks(self.cells, block), len(self.y)

    def parts(self) -> int:
        """Number of parts of a sum over all windows."""
        return min(_PARTS // len(self.y) + 1, blocks(self.cells, 2 * _windows(self.y.shape[-1])))

    def sizes(self) -> tuple[float, ...]:
        """Strides, sizes and ε, in the order of the kernels."""
        return self.gamma.stride(0), self.beta.stride(0), self.cells, *self.y.shape[1:4], self.eps

    def settings(self) -> dict[str, object]:
        """Arguments of all kernels that pass over the windows of y."""
        channels = self.y.shape[-1]
        shape = {"WIDTH": self.gamma.shape[1], "C": channels, "BLOCK": _windows(channels)}
        constant = {"CONSTANT": is_constant(self.moments), "POOL": POOLS[self.pooling]}
        return {**shape, **constant, "ACC": accumulator(self.y)[1]}


def normalise(norm: Norm) -> tuple[Tensor, Tensor]:
    """z `[T, N, H/2, W/2, C]`, or of the size of y without pooling; and, for a max-pool, ŷ at each window's
    maximum, else nothing of use."""
    z, block = empty(norm.y, *norm.outputs), _windows(norm.y.shape[-1])
    if norm.pooling != "max":
        normalise_all_kernel[norm.grid(block)](*norm.operands, z, *norm.sizes(), **norm.settings())
        return z, norm.moments
    peaks = torch.empty_like(z)
    windows = z[0, ..., 0].numel()
    normalise_kernel[(blocks(windows, block), len(z))](
        *norm.operands, z, peaks, *norm.sizes(), windows, **norm.settings()
    )
    return z, peaks


def _sums(norm: Norm, gz: Tensor, peaks: Tensor) -> Tensor:
    """The parts `[T, parts, 2, C]` of A and B."""
    if norm.pooling == "max":
        return first_sums(gz, peaks, norm.gamma, norm.beta)
    tasks, parts = len(gz), norm.parts()
    partial = empty(gz, tasks, parts, 2, gz.shape[-1], dtype=accumulator(gz)[0])
    sum_first_all_kernel[(parts, tasks)](gz, *norm.operands, partial, *norm.sizes(), **norm.settings())
    return few_parts(partial)


def backward(norm: Norm, gz: Tensor, peaks: Tensor, ggamma: Tensor, gbeta: Tensor) -> tuple[Tensor, Tensor]:
    """gy, shaped like y, and the parts `[T, parts, 2, C]` of A and B; writes gγ and gβ."""
    sums, gy = _sums(norm, gz, peaks), empty(norm.y, *norm.y.shape)
    backward_kernel[norm.grid(_windows(gz.shape[-1]))](
        gz, *norm.operands, sums, gy, ggamma, gbeta, *norm.sizes(), ggamma.stride(0), sums.shape[1],
        SUMS=_parts(sums), **norm.settings(),
    )  # fmt: skip
    return gy, sums


def first_sums(gz: Tensor, peaks: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """The parts `[T, parts, 2, C]` of A and B, which need the pooled values only."""
    tasks, images, height, width, channels = gz.shape
    windows = images * height * width
    block = 4 * _windows(channels)
    parts = min(_PARTS // tasks + 1, FEW, blocks(windows, block))
    dtype, acc = accumulator(gz)
    partial = empty(gz, tasks, parts, 2, channels, dtype=dtype)
    sum_first_kernel[(parts, tasks)](
        gz, peaks, gamma, beta, partial, gamma.stride(0), beta.stride(0), windows,
        WIDTH=gamma.shape[1], C=channels, BLOCK=block, ACC=acc, num_warps=8,
    )  # fmt: skip
    return partial


def tangent(norm: Norm, u: Tensor, c: Tensor, b: Tensor, gz: Tensor) -> tuple[Tensor, Tensor]:
    """dz for changes u of y, c of γ and b of β, and the parts `[T, parts, 3, C]` of U, V and X."""
    tasks, parts, channels = len(gz), norm.parts(), gz.shape[-1]
    partial = empty(gz, tasks, parts, 3, channels, dtype=accumulator(gz)[0])
    sum_second_kernel[(parts, tasks)](u, gz, *norm.operands, partial, *norm.sizes(), **norm.settings())
    second, dz = few_parts(partial), empty(gz, *gz.shape)
    tangent_kernel[norm.grid(_windows(channels))](
        u, c, b, *norm.operands, second, dz, *norm.sizes(), c.stride(0), b.stride(0), second.shape[1],
        SECOND=_parts(second), **norm.settings(),
    )  # fmt: skip
    return dz, second


def hvp(
    norm: Norm, dgz: Tensor | None, u: Tensor, c: Tensor, gz: Tensor, peaks: Tensor, sums: Tensor,
    second: Tensor, ggamma: Tensor, gbeta: Tensor,
) -> Tensor:  # fmt: skip
    """d(gy) for a change `dgz` of gz, none if it is None; writes d(gγ) and d(gβ)."""
    more = sums if dgz is None else _sums(norm, dgz, peaks)
    block = max(8, _windows(gz.shape[-1]) // 2)  # it holds twice as many values as the other passes
    gy = empty(norm.y, *norm.y.shape)
    hvp_kernel[norm.grid(block)](
        gz if dgz is None else dgz, u, c, gz, *norm.operands, sums, second, more, gy, ggamma, gbeta,
        *norm.sizes(), c.stride(0), ggamma.stride(0), sums.shape[1], second.shape[1], more.shape[1],
        SUMS=_parts(sums), SECOND=_parts(second), MORE=0 if dgz is None else _parts(more),
        **(norm.settings() | {"BLOCK": block}),
    )  # fmt: skip
    return gy


def _parts(sums: Tensor) -> int:
    """The number of parts, rounded up to what a program can load."""
    return int(triton.next_power_of_2(sums.shape[1]))


def _windows(channels: int) -> int:
    """Number of windows per program, so that four pixels of each fit in registers."""
    return max(8, 2048 // channels)


@triton.jit
def normalise_kernel(
    y, moments, gamma, beta, z, peaks, gamma_stride, beta_stride, cells, images, height, width, eps, windows,
    WIDTH: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr, CONSTANT: tl.constexpr,
    POOL: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, WIDTH, C, ACC, CONSTANT
    )
    w = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = w < windows
    across = width // 2
    down = height // 2
    first = ((w // (across * down)) * height + 2 * ((w // across) % down)) * width + 2 * (w % across)
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
def _outputs(images, height, width, POOL: tl.constexpr):
    """The number of pixels of z per task."""
    return images * height * width if POOL == 0 else images * (height // 2) * (width // 2)


@triton.jit
def normalise_all_kernel(
    y, moments, gamma, beta, z, gamma_stride, beta_stride, cells, images, height, width, eps,
    WIDTH: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr, POOL: tl.constexpr,
    CONSTANT: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, WIDTH, C, ACC, CONSTANT
    )
    first, inside, right, below, pooled = cells_of(
        tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), cells, height, width
    )
    y += task * images * height * width * C
    z += task * _outputs(images, height, width, POOL) * C
    n0, n1, n2, n3 = normalised_of(y, first, inside, right, below, width, mean, scale, C, ACC)
    is0, is1, is2, is3 = passed_on(n0, n1, n2, n3, gain, shift, inside, right, below, POOL)
    t0 = n0 * gain + shift
    t1 = n1 * gain + shift
    t2 = n2 * gain + shift
    t3 = n3 * gain + shift
    put_outputs(z, first, pooled, inside, right, below, width, is0, is1, is2, is3, t0, t1, t2, t3, C, POOL)


@triton.jit
def sum_first_all_kernel(
    gz, y, moments, gamma, beta, partial, gamma_stride, beta_stride, cells, images, height, width, eps,
    WIDTH: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr, POOL: tl.constexpr,
    CONSTANT: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, WIDTH, C, ACC, CONSTANT
    )
    y += task * images * height * width * C
    gz += task * _outputs(images, height, width, POOL) * C
    a = tl.zeros((BLOCK, C), ACC)
    b = tl.zeros((BLOCK, C), ACC)
    for start in range(part * BLOCK, cells, parts * BLOCK):
        first, inside, right, below, pooled = cells_of(start + tl.arange(0, BLOCK), cells, height, width)
        n0, n1, n2, n3 = normalised_of(y, first, inside, right, below, width, mean, scale, C, ACC)
        is0, is1, is2, is3 = passed_on(n0, n1, n2, n3, gain, shift, inside, right, below, POOL)
        g0, g1, g2, g3 = outputs_of(gz, first, pooled, inside, right, below, width, C, ACC, POOL)
        a += pick(is0, is1, is2, is3, g0, g1, g2, g3)
        b += pick(is0, is1, is2, is3, g0 * n0, g1 * n1, g2 * n2, g3 * n3)
    at = partial + ((task * parts + part) * 2) * C + tl.arange(0, C)
    tl.store(at, tl.sum(a, 0))
    tl.store(at + C, tl.sum(b, 0))


@triton.jit
def sum_first_kernel(
    gz, peaks, gamma, beta, partial, gamma_stride, beta_stride, windows,
    WIDTH: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    task = tl.program_id(1).to(tl.int64)
    c = tl.arange(0, C)
    gain = load_row(gamma + task * gamma_stride, WIDTH, C).to(ACC)
    shift = load_row(beta + task * beta_stride, WIDTH, C).to(ACC)
    gz += task * windows * C
    peaks += task * windows * C
    a = tl.zeros((BLOCK, C), ACC)
    b = tl.zeros((BLOCK, C), ACC)
    for first in range(part * BLOCK, windows, parts * BLOCK):
        w = first + tl.arange(0, BLOCK)
        ok = w < windows
        grad = rows_of(gz, w, ok, C, ACC)
        peak = rows_of(peaks, w, ok, C, ACC)
        grad = tl.where(peak * gain + shift > 0, grad, 0.0)
        a += grad
        b += grad * peak
    at = partial + ((task * parts + part) * 2) * C + c
    tl.store(at, tl.sum(a, 0))
    tl.store(at + C, tl.sum(b, 0))


@triton.jit
def backward_kernel(
    gz, y, moments, gamma, beta, sums, gy, ggamma, gbeta, gamma_stride, beta_stride, cells, images, height,
    width, eps, out_stride, parts,
    WIDTH: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr, SUMS: tl.constexpr,
    POOL: tl.constexpr, CONSTANT: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, WIDTH, C, ACC, CONSTANT
    )
    w = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first, inside, right, below, pooled = cells_of(w, cells, height, width)
    corner = right & below
    pixels = images * height * width
    y += task * pixels * C
    gy += task * pixels * C
    gz += task * _outputs(images, height, width, POOL) * C
    n0, n1, n2, n3 = normalised_of(y, first, inside, right, below, width, mean, scale, C, ACC)
    is0, is1, is2, is3 = passed_on(n0, n1, n2, n3, gain, shift, inside, right, below, POOL)
    g0, g1, g2, g3 = outputs_of(gz, first, pooled, inside, right, below, width, C, ACC, POOL)
    a = load_sum(sums, 0, 2, parts, task, C, SUMS)
    b = load_sum(sums, 1, 2, parts, task, C, SUMS)
    if tl.program_id(0) == 0:
        store_row(gbeta + task * out_stride, a, WIDTH, C)
        store_row(ggamma + task * out_stride, b, WIDTH, C)
    a = per_pixel(a, pixels, CONSTANT)
    b = per_pixel(b, pixels, CONSTANT)
    factor = gain * scale
    put(gy, first, inside, factor * gradient_of(is0, g0, n0, a, b, CONSTANT), C)
    put(gy, first + 1, right, factor * gradient_of(is1, g1, n1, a, b, CONSTANT), C)
    put(gy, first + width, below, factor * gradient_of(is2, g2, n2, a, b, CONSTANT), C)
    put(gy, first + width + 1, corner, factor * gradient_of(is3, g3, n3, a, b, CONSTANT), C)


@triton.jit
def sum_second_kernel(
    u, gz, y, moments, gamma, beta, partial, gamma_stride, beta_stride, cells, images, height, width, eps,
    WIDTH: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr, POOL: tl.constexpr,
    CONSTANT: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, WIDTH, C, ACC, CONSTANT
    )
    y += task * images * height * width * C
    u += task * images * height * width * C
    gz += task * _outputs(images, height, width, POOL) * C
    su = tl.zeros((BLOCK, C), ACC)
    sv = tl.zeros((BLOCK, C), ACC)
    sx = tl.zeros((BLOCK, C), ACC)
    for start in range(part * BLOCK, cells, parts * BLOCK):
        first, inside, right, below, pooled = cells_of(start + tl.arange(0, BLOCK), cells, height, width)
        n0, n1, n2, n3 = normalised_of(y, first, inside, right, below, width, mean, scale, C, ACC)
        u0, u1, u2, u3 = window_of(u, first, inside, right, below, width, C, ACC)
        is0, is1, is2, is3 = passed_on(n0, n1, n2, n3, gain, shift, inside, right, below, POOL)
        g0, g1, g2, g3 = outputs_of(gz, first, pooled, inside, right, below, width, C, ACC, POOL)
        if not CONSTANT:
            su += (u0 + u1) + (u2 + u3)
            sv += (u0 * n0 + u1 * n1) + (u2 * n2 + u3 * n3)
        sx += pick(is0, is1, is2, is3, u0 * g0, u1 * g1, u2 * g2, u3 * g3)
    store_sums(partial, su, sv, sx, task, C)


@triton.jit
def tangent_kernel(
    u, c, b, y, moments, gamma, beta, second, dz, gamma_stride, beta_stride, cells, images, height, width,
    eps, c_stride, b_stride, parts,
    WIDTH: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr, SECOND: tl.constexpr,
    POOL: tl.constexpr, CONSTANT: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, WIDTH, C, ACC, CONSTANT
    )
    pixels = images * height * width
    factor, by_n, by_1 = tangent_coefficients(
        c, b, second, parts, c_stride, b_stride, gain, scale, task, pixels, WIDTH, C, SECOND, ACC,
        CONSTANT,
    )  # fmt: skip
    first, inside, right, below, pooled = cells_of(
        tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), cells, height, width
    )
    y += task * pixels * C
    u += task * pixels * C
    dz += task * _outputs(images, height, width, POOL) * C
    n0, n1, n2, n3 = normalised_of(y, first, inside, right, below, width, mean, scale, C, ACC)
    u0, u1, u2, u3 = window_of(u, first, inside, right, below, width, C, ACC)
    is0, is1, is2, is3 = passed_on(n0, n1, n2, n3, gain, shift, inside, right, below, POOL)
    t0 = factor * u0 + by_n * n0 + by_1
    t1 = factor * u1 + by_n * n1 + by_1
    t2 = factor * u2 + by_n * n2 + by_1
    t3 = factor * u3 + by_n * n3 + by_1
    put_outputs(dz, first, pooled, inside, right, below, width, is0, is1, is2, is3, t0, t1, t2, t3, C, POOL)


@triton.jit
def hvp_kernel(
    dgz, u, c, gz, y, moments, gamma, beta, sums, second, more, gy, ggamma, gbeta, gamma_stride, beta_stride,
    cells, images, height, width, eps, c_stride, out_stride, sums_parts, second_parts, more_parts,
    WIDTH: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, ACC: tl.constexpr, SUMS: tl.constexpr,
    SECOND: tl.constexpr, MORE: tl.constexpr, POOL: tl.constexpr, CONSTANT: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    pixels = images * height * width
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, WIDTH, C, ACC, CONSTANT
    )
    factor, on_u, on_a, on_n, on_1 = hvp_coefficients(
        c, sums, second, more, ggamma, gbeta, tl.program_id(0) == 0, c_stride, out_stride, gain, scale, task,
        pixels, sums_parts, second_parts, more_parts, WIDTH, C, SUMS, SECOND, MORE, ACC, CONSTANT,
    )  # fmt: skip
    first, inside, right, below, pooled = cells_of(
        tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), cells, height, width
    )
    corner = right & below
    y += task * pixels * C
    u += task * pixels * C
    gy += task * pixels * C
    gz += task * _outputs(images, height, width, POOL) * C
    n0, n1, n2, n3 = normalised_of(y, first, inside, right, below, width, mean, scale, C, ACC)
    u0, u1, u2, u3 = window_of(u, first, inside, right, below, width, C, ACC)
    is0, is1, is2, is3 = passed_on(n0, n1, n2, n3, gain, shift, inside, right, below, POOL)
    g0, g1, g2, g3 = outputs_of(gz, first, pooled, inside, right, below, width, C, ACC, POOL)
    g0 = on_a * g0
    g1 = on_a * g1
    g2 = on_a * g2
    g3 = on_a * g3
    if MORE > 0:
        dgz += task * _outputs(images, height, width, POOL) * C
        d0, d1, d2, d3 = outputs_of(dgz, first, pooled, inside, right, below, width, C, ACC, POOL)
        g0 += factor * d0
        g1 += factor * d1
        g2 += factor * d2
        g3 += factor * d3
    put(gy, first, inside, hvp_of(u0, is0, g0, n0, on_u, on_n, on_1, CONSTANT), C)
    put(gy, first + 1, right, hvp_of(u1, is1, g1, n1, on_u, on_n, on_1, CONSTANT), C)
    put(gy, first + width, below, hvp_of(u2, is2, g2, n2, on_u, on_n, on_1, CONSTANT), C)
    put(gy, first + width + 1, corner, hvp_of(u3, is3, g3, n3, on_u, on_n, on_1, CONSTANT), C)
