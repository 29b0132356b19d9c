"""The first conv block as in `stem`, with fewer passes over the images.

The mathematics is that of `normalisation`, with u = conv(x, v) for a direction v of the filters.

Let p be the 9·I values that a pixel of the convolution needs, followed by a one. Everything that is summed
over all pixels follows from their products S = Σ p pᵀ, which do not change along a path, and everything that
is summed over the maxima of windows from G = Σ gz p, where p belongs to the maximum:

    μ = w · Σp / M,   σ² = wᵀ S w / M − μ²,   y − μ = w′ · p,    w′ = (w, −μ)
    A = the last entry of G,     B = r G · w′,     X = G · v,     U = v · Σp,     V = r vᵀ S w′
    gw     = γ r (G − A/M Σp − r B/M S w′)
    d(gw)  = on_a G + γ r dG + S (on_u v + on_n r w′) + on_1 Σp

with G for gz, dG for a change of gz, and the coefficients of `windows.hvp_coefficients`. So a pass over the
images only has to find z and the position of each maximum, G, or dz. The rest is computed in float64 for one
channel at a time: it is little work, and differences of large sums would lose digits in float32.

p is stored for the four pixels of every window, once per path: a pass then reads rows of memory, where it
would else compute an address and a mask for every value. In bfloat16 these are 256 bytes per window, about
twice as many as its output has, and reading them takes less time than all the rest of a pass.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from pathaware.engine.kernels.launch import accumulator, blocks, dot_precision, empty, stored_channels
from pathaware.engine.kernels.stem import corner_of, images_of
from pathaware.engine.kernels.weight_gradient import add_product, number_of_pieces, piece, pieces_of
from pathaware.engine.kernels.windows import cells_of, channel_values, put

_PARTS = 528
"""Number of programs of a pass: four per multiprocessor of an H200."""

_BLOCK, _WARPS = 64, 4
"""Number of windows that a program computes at once (fewer with many channels), and of its warps."""

NOWHERE = tl.constexpr(4)
"""The position of a window's maximum if it does not exist or is not positive."""


@dataclass(frozen=True)
class Images:
    """p for the four pixels of each whole window of T tasks, `[T, N, H/2, W/2, 4, K]`, and S `[T, K, K]`."""

    stored: Tensor
    products: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Images:
        """Gather the pixels' values from `x [T, N, I, H, W]`, and add up their products."""
        tasks, count, inputs, height, width = x.shape
        padded = F.pad(x, (1, 1 + width % 2, 1, 1 + height % 2))
        depth, block = _depth(inputs), 32
        stored = empty(x, tasks, count, height // 2, width // 2, 4, depth)
        cells = count * blocks(height, 2) * blocks(width, 2)
        parts = min(_PARTS // tasks + 1, blocks(cells, block))
        dtype, acc = accumulator(x)
        partial = empty(x, tasks, parts, depth, depth, dtype=dtype)
        precise = "tf32x3" if x.dtype == torch.float32 else "ieee"
        stem_products_kernel[(parts, tasks)](
            padded, stored, partial, cells, count, height, width,
            BLOCK=block, INPUTS=inputs, DEPTH=depth, PRECISION=precise, ACC=acc,
        )  # fmt: skip
        products = empty(x, tasks, depth, depth, dtype=torch.float64)
        stem_join_kernel[(depth, tasks)](
            partial, products, parts, DEPTH=depth, PARTS=triton.next_power_of_2(parts)
        )
        return cls(stored, products)

    @property
    def windows(self) -> int:
        """Number of windows per task."""
        return self.stored[0, ..., 0, 0].numel()


@dataclass(frozen=True)
class Filters:
    """Filters `[T, C, K]` in the precision of a product, and the moments `[T, 2, C]` of their outputs."""

    packed: Tensor
    moments: Tensor

    @classmethod
    def of(cls, weight: Tensor, images: Images) -> Filters:
        """Moments over all pixels of `images`; both are float64, as far as the images are exact."""
        tasks, channels, depth = len(weight), stored_channels(weight.shape[1]), images.products.shape[-1]
        packed = empty(images.stored, tasks, channels, depth)
        moments = empty(weight, tasks, 2, channels)
        stem_moments_kernel[(channels, tasks)](
            weight, images.products, packed, moments, weight.stride(0),
            WIDTH=weight.shape[1], TAPS=9 * weight.shape[2], C=channels, DEPTH=depth, TF32=_tf32(packed),
            num_warps=1,
        )  # fmt: skip
        return cls(packed, moments)


def forward(
    images: Images, filters: Filters, gamma: Tensor, beta: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """z `[T, N, H/2, W/2, C]`, and which of the four pixels of each window is its maximum, in int8."""
    tasks, channels, _ = filters.packed.shape
    z = empty(images.stored, *images.stored.shape[:4], channels)
    where = empty(z, *z.shape, dtype=torch.int8)
    stem_forward_kernel[(_programs(images, filters), tasks)](
        images.stored, filters.packed, filters.moments, gamma, beta, z, where, gamma.stride(0),
        beta.stride(0), images.windows, eps,
        WIDTH=gamma.shape[1], PRECISION=dot_precision(z), **_settings(images, filters, stages=3),
    )  # fmt: skip
    return z, where


def backward(
    gz: Tensor, where: Tensor, images: Images, filters: Filters, gamma: Tensor, eps: float, gw: Tensor,
    ggamma: Tensor, gbeta: Tensor,
) -> Tensor:  # fmt: skip
    """G `[T, C, K]`; writes the gradients of the filters, γ and β."""
    sums = _sums(gz, where, images, filters)
    total = empty(sums, len(gz), *sums.shape[2:])
    stem_backward_kernel[(gw.shape[1], len(gz))](
        sums, total, filters.packed, filters.moments, images.products, gamma, gw, ggamma, gbeta,
        gamma.stride(0), gw.stride(0), ggamma.stride(0), sums.shape[1], eps,
        TAPS=9 * gw.shape[2], C=sums.shape[2], DEPTH=sums.shape[3],
        PARTS=triton.next_power_of_2(sums.shape[1]),
    )  # fmt: skip
    return total


def tangent(
    v: Tensor, c: Tensor, b: Tensor, where: Tensor, images: Images, filters: Filters, gamma: Tensor,
    eps: float,
) -> Tensor:  # fmt: skip
    """dz for changes v of the filters, c of γ and b of β."""
    tasks, channels, depth = filters.packed.shape
    along, constant = empty(filters.packed, *filters.packed.shape), empty(filters.moments, tasks, channels)
    stem_direction_kernel[(channels, tasks)](
        v, c, b, filters.packed, filters.moments, images.products, gamma, along, constant, v.stride(0),
        c.stride(0), b.stride(0), gamma.stride(0), eps,
        WIDTH=v.shape[1], TAPS=9 * v.shape[2], C=channels, DEPTH=depth, TF32=_tf32(along), num_warps=1,
    )  # fmt: skip
    dz = empty(images.stored, *where.shape)
    stem_tangent_kernel[(_programs(images, filters), tasks)](
        images.stored, along, constant, where, dz, images.windows,
        PRECISION=dot_precision(dz), **_settings(images, filters, stages=3),
    )  # fmt: skip
    return dz


def hvp(
    dgz: Tensor | None, v: Tensor, c: Tensor, sums: Tensor, where: Tensor, images: Images, filters: Filters,
    gamma: Tensor, eps: float, gw: Tensor, ggamma: Tensor, gbeta: Tensor,
) -> None:  # fmt: skip
    """Writes the changes of the gradients of the filters, γ and β, for a change `dgz` of gz, if any."""
    more = sums.unsqueeze(1) if dgz is None else _sums(dgz, where, images, filters)
    stem_hvp_kernel[(gw.shape[1], len(gw))](
        sums, more, v, c, filters.packed, filters.moments, images.products, gamma, gw, ggamma, gbeta,
        v.stride(0), c.stride(0), gamma.stride(0), gw.stride(0), ggamma.stride(0), more.shape[1], eps,
        TAPS=9 * gw.shape[2], C=sums.shape[1], DEPTH=sums.shape[2],
        MORE=0 if dgz is None else triton.next_power_of_2(more.shape[1]),
    )  # fmt: skip


def _sums(gz: Tensor, where: Tensor, images: Images, filters: Filters) -> Tensor:
    """The parts `[T, parts, C, K]` of G."""
    tasks, channels, depth = filters.packed.shape
    parts = _programs(images, filters)
    partial = empty(gz, tasks, parts, channels, depth, dtype=accumulator(gz)[0])
    stem_sums_kernel[(parts, tasks)](
        gz, where, images.stored, partial, images.windows,
        PIECES=number_of_pieces(gz), PIECE=piece(), **_settings(images, filters, stages=2),
    )  # fmt: skip
    return partial


def _programs(images: Images, filters: Filters) -> int:
    tasks, channels, _ = filters.packed.shape
    return min(_PARTS // tasks + 1, blocks(images.windows, _windows(channels)))


def _windows(channels: int) -> int:
    """Number of windows per program, so that four pixels of each fit in registers."""
    return max(16, min(_BLOCK, 64 * _BLOCK // channels))


def _depth(inputs: int) -> int:
    """K: the length of p, rounded up."""
    return max(16, int(triton.next_power_of_2(9 * inputs + 1)))


def _tf32(filters: Tensor) -> bool:
    """True if products round filters to TF32. Then they are rounded before their moments are computed."""
    return dot_precision(filters) == "tf32"


def _settings(images: Images, filters: Filters, stages: int) -> dict[str, object]:
    """Arguments that all kernels that pass over windows share; `stages` are those of their pipelines."""
    return {
        "C": filters.packed.shape[1],
        "DEPTH": filters.packed.shape[2],
        "ACC": accumulator(images.stored)[1],
        "BLOCK": _windows(filters.packed.shape[1]),
        "num_warps": _WARPS,
        "num_stages": stages,
    }


@triton.jit
def _gathered(x, corner, ok, height, width, INPUTS: tl.constexpr, DEPTH: tl.constexpr):
    """p of each pixel, `[BLOCK, DEPTH]`, zero where not `ok`; `corner` is where each begins in the images."""
    k = tl.arange(0, DEPTH)
    across = width + width % 2 + 2
    down = height + height % 2 + 2
    at = (k // 9) * (down * across) + (k % 9) // 3 * across + k % 3
    # transposed, so that the threads of a warp read neighbouring pixels, which are close together in memory
    mask = (k < 9 * INPUTS)[:, None] & ok[None, :]
    values = tl.load(x + at[:, None] + corner[None, :], mask=mask, other=0.0)
    one = (k == 9 * INPUTS)[:, None] & ok[None, :]
    return tl.trans(tl.where(one, 1.0, values).to(x.dtype.element_ty))


@triton.jit
def _pixels(x, w, ok, i: tl.constexpr, DEPTH: tl.constexpr):
    """p of pixel i of windows w, `[BLOCK, DEPTH]`, zero where not `ok`."""
    at = x + (w * 4 + i)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
    return tl.load(at, mask=ok[:, None], other=0.0)


@triton.jit
def _rows(data, task, C: tl.constexpr, DEPTH: tl.constexpr):
    """The filters `[C, DEPTH]` of a task."""
    at = (task * C + tl.arange(0, C))[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
    return tl.load(data + at)


@triton.jit
def _times(
    x, w, ok, filters, i: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr
):
    """The convolution at pixel i of windows w, `[BLOCK, C]`."""
    pixels = _pixels(x, w, ok, i, DEPTH)
    return tl.dot(pixels, tl.trans(filters), input_precision=PRECISION, out_dtype=ACC)


@triton.jit
def stem_products_kernel(
    x, stored, partial, cells, count, height, width, BLOCK: tl.constexpr, INPUTS: tl.constexpr,
    DEPTH: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Stores p for all whole windows, and the parts of S, which counts the pixels of all windows."""
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    task = tl.program_id(1).to(tl.int64)
    x = images_of(x, task, count, height, width, INPUTS)
    stored += task * count * (height // 2) * (width // 2) * 4 * DEPTH
    across = width + width % 2 + 2
    k = tl.arange(0, DEPTH)
    total = tl.zeros((DEPTH, DEPTH), ACC)
    for start in range(part * BLOCK, cells, parts * BLOCK):
        first, inside, right, below, pooled = cells_of(start + tl.arange(0, BLOCK), cells, height, width)
        corner = corner_of(first, height, width, INPUTS)
        whole = right & below
        for i in tl.static_range(4):
            ok = inside
            if i % 2 == 1:
                ok = ok & right
            if i >= 2:
                ok = ok & below
            at = corner + (i // 2) * across + i % 2
            p = _gathered(x, at, ok, height, width, INPUTS, DEPTH)
            total = tl.dot(tl.trans(p), p, total, input_precision=PRECISION, out_dtype=ACC)
            to = stored + (pooled * 4 + i)[:, None] * DEPTH + k[None, :]
            tl.store(to, p, mask=whole[:, None])
    tl.store(partial + ((task * parts + part) * DEPTH + k[:, None]) * DEPTH + k[None, :], total)


@triton.jit
def stem_join_kernel(partial, products, parts, DEPTH: tl.constexpr, PARTS: tl.constexpr):
    """Adds one row of the parts of S in float64."""
    row = tl.program_id(0)
    task = tl.program_id(1)
    k = tl.arange(0, DEPTH)
    tl.store(
        products + (task * DEPTH + row) * DEPTH + k, _joined(partial, row, parts, task, DEPTH, DEPTH, PARTS)
    )


@triton.jit
def _joined(partial, row, parts, task, ROWS: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr):
    """One row of `[T, parts, ROWS, DEPTH]`, summed over the parts in float64."""
    part = tl.arange(0, PARTS)
    at = ((task * parts + part) * ROWS + row)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
    values = tl.load(partial + at, mask=(part < parts)[:, None], other=0.0)
    return tl.sum(values.to(tl.float64), 0)


@triton.jit
def _rounded(value, filters, TF32: tl.constexpr):
    """A value as a product reads it: in the dtype of the filters, or TF32."""
    if TF32:
        bits = (value.to(tl.float32).to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        value = bits.to(tl.float32, bitcast=True)
    return value.to(filters.dtype.element_ty)


@triton.jit
def _last(values, TAPS: tl.constexpr, DEPTH: tl.constexpr):
    """The entry of p's one."""
    return tl.sum(tl.where(tl.arange(0, DEPTH) == TAPS, values, 0.0), 0)


@triton.jit
def _row(data, at, DEPTH: tl.constexpr):
    return tl.load(data + at * DEPTH + tl.arange(0, DEPTH)).to(tl.float64)


@triton.jit
def _taps(data, channel, ok, TAPS: tl.constexpr, DEPTH: tl.constexpr):
    """A filter `[DEPTH]` of `[O, TAPS]` in float64, zero beyond its taps."""
    k = tl.arange(0, DEPTH)
    return tl.load(data + channel * TAPS + k, mask=(k < TAPS) & ok, other=0.0).to(tl.float64)


@triton.jit
def _matrix(products, task, DEPTH: tl.constexpr):
    k = tl.arange(0, DEPTH)
    return tl.load(products + (task * DEPTH + k[:, None]) * DEPTH + k[None, :])


@triton.jit
def stem_moments_kernel(
    weight, products, packed, moments, stride,
    WIDTH: tl.constexpr, TAPS: tl.constexpr, C: tl.constexpr, DEPTH: tl.constexpr, TF32: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    filters = _rounded(_taps(weight + task * stride, channel, channel < WIDTH, TAPS, DEPTH), packed, TF32)
    tl.store(packed + (task * C + channel) * DEPTH + tl.arange(0, DEPTH), filters)
    filters = filters.to(tl.float64)
    total = _row(products, task * DEPTH + TAPS, DEPTH)
    pixels = _last(total, TAPS, DEPTH)
    mean = tl.sum(filters * total, 0) / pixels
    away = filters - tl.where(tl.arange(0, DEPTH) == TAPS, mean, 0.0)
    turned = tl.sum(_matrix(products, task, DEPTH) * away[None, :], 1)
    tl.store(moments + task * 2 * C + channel, mean)
    tl.store(moments + (task * 2 + 1) * C + channel, tl.maximum(tl.sum(away * turned, 0) / pixels, 0.0))


@triton.jit
def stem_forward_kernel(
    x, filters, moments, gamma, beta, z, where, gamma_stride, beta_stride, windows, eps,
    WIDTH: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    mean, scale, gain, shift = channel_values(
        moments, gamma, beta, gamma_stride, beta_stride, task, eps, WIDTH, C, ACC
    )
    gain *= scale
    filters = _rows(filters, task, C, DEPTH)
    x += task * windows * 4 * DEPTH
    z += task * windows * C
    where += task * windows * C
    for start in range(tl.program_id(0) * BLOCK, windows, tl.num_programs(0) * BLOCK):
        w = start + tl.arange(0, BLOCK)
        ok = w < windows
        top = (_times(x, w, ok, filters, 0, DEPTH, PRECISION, ACC) - mean) * gain + shift
        found = tl.zeros((BLOCK, C), tl.int32)
        for i in tl.static_range(1, 4):
            y = (_times(x, w, ok, filters, i, DEPTH, PRECISION, ACC) - mean) * gain + shift
            found = tl.where(y > top, i, found)
            top = tl.maximum(top, y)
        found = tl.where(top > 0, found, NOWHERE)
        put(z, w, ok, tl.maximum(top, 0.0), C)
        put(where, w, ok, found, C)


@triton.jit
def stem_sums_kernel(
    gz, where, x, partial, windows,
    C: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr, PIECES: tl.constexpr, PIECE: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """The summed axis is the outer one of both factors, as in `weight_gradient`."""
    part = tl.program_id(0)
    parts = tl.num_programs(0)
    task = tl.program_id(1).to(tl.int64)
    x += task * windows * 4 * DEPTH
    gz += task * windows * C
    where += task * windows * C
    c = tl.arange(0, C)
    k = tl.arange(0, DEPTH)
    total = tl.zeros((C, DEPTH), ACC)
    for start in range(part * BLOCK, windows, parts * BLOCK):
        w = start + tl.arange(0, BLOCK)
        ok = w < windows
        at = w[:, None] * C + c[None, :]
        grad = tl.load(gz + at, mask=ok[:, None], other=0.0)
        found = tl.load(where + at, mask=ok[:, None], other=NOWHERE)
        for i in tl.static_range(4):
            pixels = _pixels(x, w, ok, i, DEPTH)
            there = tl.where(found == i, grad, 0.0).to(pixels.dtype)
            a0, a1, a2 = pieces_of(there, PIECES, PIECE)
            b0, b1, b2 = pieces_of(pixels, PIECES, PIECE)
            total = add_product(total, a0, a1, a2, b0, b1, b2, PIECES, ACC)
    tl.store(partial + ((task * parts + part) * C + c[:, None]) * DEPTH + k[None, :], total)


@triton.jit
def _channel(packed, moments, gamma, products, channel, task, gamma_stride, eps,
             TAPS: tl.constexpr, C: tl.constexpr, DEPTH: tl.constexpr):  # fmt: skip
    """w′, r and γ of a channel, Σp, S and the number of pixels M of a task, in float64."""
    mean = tl.load(moments + task * 2 * C + channel).to(tl.float64)
    scale = 1.0 / tl.sqrt(tl.load(moments + (task * 2 + 1) * C + channel).to(tl.float64) + eps)
    gain = tl.load(gamma + task * gamma_stride + channel).to(tl.float64)
    away = _row(packed, task * C + channel, DEPTH) - tl.where(tl.arange(0, DEPTH) == TAPS, mean, 0.0)
    total = _row(products, task * DEPTH + TAPS, DEPTH)
    return away, scale, gain, total, _matrix(products, task, DEPTH), _last(total, TAPS, DEPTH)


@triton.jit
def stem_backward_kernel(
    partial, sums, packed, moments, products, gamma, gw, ggamma, gbeta, gamma_stride, out_stride,
    gain_stride, parts, eps, TAPS: tl.constexpr, C: tl.constexpr, DEPTH: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    away, scale, gain, total, matrix, pixels = _channel(
        packed, moments, gamma, products, channel, task, gamma_stride, eps, TAPS, C, DEPTH
    )
    k = tl.arange(0, DEPTH)
    g = _joined(partial, channel, parts, task, C, DEPTH, PARTS)
    a = _last(g, TAPS, DEPTH)
    b = scale * tl.sum(g * away, 0)
    dense = a * total + b * scale * tl.sum(matrix * away[None, :], 1)
    tl.store(sums + (task * C + channel) * DEPTH + k, g)
    tl.store(gw + task * out_stride + channel * TAPS + k, gain * scale * (g - dense / pixels), mask=k < TAPS)
    tl.store(ggamma + task * gain_stride + channel, b)
    tl.store(gbeta + task * gain_stride + channel, a)


@triton.jit
def stem_direction_kernel(
    v, c, b, packed, moments, products, gamma, along, constant, v_stride, c_stride, b_stride, gamma_stride,
    eps, WIDTH: tl.constexpr, TAPS: tl.constexpr, C: tl.constexpr, DEPTH: tl.constexpr, TF32: tl.constexpr,
):  # fmt: skip
    """Filters and a constant whose convolution is dz at the maximum."""
    channel = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, DEPTH)
    if channel >= WIDTH:
        tl.store(along + (task * C + channel) * DEPTH + k, tl.zeros((DEPTH,), along.dtype.element_ty))
        tl.store(constant + task * C + channel, 0.0)
    else:
        away, scale, gain, total, matrix, pixels = _channel(
            packed, moments, gamma, products, channel, task, gamma_stride, eps, TAPS, C, DEPTH
        )
        u = _taps(v + task * v_stride, channel, True, TAPS, DEPTH)
        sv = scale * tl.sum(u * tl.sum(matrix * away[None, :], 1), 0)
        to_gain = tl.load(c + task * c_stride + channel).to(tl.float64)
        by_n = to_gain - gain * scale * sv / pixels
        exact = tl.where(k < TAPS, gain * scale * u + by_n * scale * away, 0.0)
        rounded = _rounded(exact, along, TF32)
        # dz is the shift's change on average, however the filters are rounded
        mean = tl.sum(rounded.to(tl.float64) * total, 0) / pixels
        tl.store(along + (task * C + channel) * DEPTH + k, rounded)
        shift = tl.load(b + task * b_stride + channel).to(tl.float64)
        tl.store(constant + task * C + channel, shift - mean)


@triton.jit
def stem_tangent_kernel(
    x, filters, constant, where, dz, windows,
    C: tl.constexpr, BLOCK: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    filters = _rows(filters, task, C, DEPTH)
    c = tl.arange(0, C)
    plus = tl.load(constant + task * C + c)[None, :].to(ACC)
    x += task * windows * 4 * DEPTH
    where += task * windows * C
    dz += task * windows * C
    for start in range(tl.program_id(0) * BLOCK, windows, tl.num_programs(0) * BLOCK):
        w = start + tl.arange(0, BLOCK)
        ok = w < windows
        found = tl.load(where + w[:, None] * C + c[None, :], mask=ok[:, None], other=NOWHERE)
        there = tl.zeros((BLOCK, C), ACC)
        for i in tl.static_range(4):
            y = _times(x, w, ok, filters, i, DEPTH, PRECISION, ACC)
            there = tl.where(found == i, y + plus, there)
        put(dz, w, ok, there, C)


@triton.jit
def stem_hvp_kernel(
    sums, partial, v, c, packed, moments, products, gamma, gw, ggamma, gbeta, v_stride, c_stride,
    gamma_stride, out_stride, gain_stride, parts, eps,
    TAPS: tl.constexpr, C: tl.constexpr, DEPTH: tl.constexpr, MORE: tl.constexpr,
):  # fmt: skip
    channel = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    away, scale, gain, total, matrix, pixels = _channel(
        packed, moments, gamma, products, channel, task, gamma_stride, eps, TAPS, C, DEPTH
    )
    k = tl.arange(0, DEPTH)
    u = _taps(v + task * v_stride, channel, True, TAPS, DEPTH)
    g = _row(sums, task * C + channel, DEPTH)
    sa = _last(g, TAPS, DEPTH)
    sb = scale * tl.sum(g * away, 0)
    su = tl.sum(u * total, 0)
    sv = scale * tl.sum(u * tl.sum(matrix * away[None, :], 1), 0)
    weight = tl.sum(g * u, 0) - (su * sa + sv * sb) / pixels
    dg = g * 0
    if MORE > 0:
        dg = _joined(partial, channel, parts, task, C, DEPTH, MORE)
    da = _last(dg, TAPS, DEPTH)
    db = scale * tl.sum(dg * away, 0)
    factor = gain * scale
    on_u = -scale * factor * sb / pixels
    on_a = scale * (tl.load(c + task * c_stride + channel).to(tl.float64) - factor * sv / pixels)
    on_n = -(on_u * sv + on_a * sb + factor * (scale * weight + db)) / pixels
    on_1 = -(on_u * su + on_a * sa + factor * da) / pixels
    dense = tl.sum(matrix * (on_u * u + on_n * scale * away)[None, :], 1) + on_1 * total
    tl.store(gw + task * out_stride + channel * TAPS + k, on_a * g + factor * dg + dense, mask=k < TAPS)
    tl.store(ggamma + task * gain_stride + channel, scale * weight + db)
    tl.store(gbeta + task * gain_stride + channel, da)
