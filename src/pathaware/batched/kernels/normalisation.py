"""Batch norm, ReLU and 2×2 max-pool of T tasks as one operation, with its first and second derivative.

Per task and channel, with M pixels, ŷ = (y − μ) r and r = (σ² + ε)^(−½):

    z  = max over a window of relu(γ ŷ + β)                                            `normalise`
    gy = γ r (a − A/M − ŷ B/M),  A = Σ a,  B = Σ a ŷ,  gγ = B,  gβ = A                 `pull_back`

a is gz, put where its window has the maximum and zero elsewhere. `pull_back` is linear in gz. Given
cotangents u, c, b of gy, gγ, gβ, with U = Σ u, V = Σ u ŷ, X = Σ u a, W = X − (U A + V B)/M, e = c − γ r V/M:

    ḡz = γ r (u − U/M − ŷ V/M) + c ŷ + b, at the maximum                               `pull_back_again`
    ȳ  = r (e (a − A/M − ŷ B/M) − γ r B/M (u − U/M − ŷ V/M)) − γ r² W ŷ/M
    γ̄  = r W

Each is two passes, sums first. A program takes whole windows of all channels, the four pixels of a window in
four registers, and works out anew where the maximum was: that costs less than remembering it.
"""

from __future__ import annotations

from torch import Tensor

from pathaware.batched.kernels.device import normalisation as device
from pathaware.batched.kernels.launch import accumulator, blocks, empty, joined

_PARTS = 528
"""Into how many parts a sum is split: four programs for each multiprocessor of an H200."""


def normalise(y: Tensor, moments: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`y [T, N, H, W, C]` → `z` and ŷ at each window's maximum, both `[T, N, H/2, W/2, C]`."""
    tasks, images, height, width, channels = y.shape
    z = empty(y, tasks, images, height // 2, width // 2, channels)
    peaks = empty(y, *z.shape)
    windows = images * (height // 2) * (width // 2)
    block = _windows(channels)
    device.normalise[(blocks(windows, block), tasks)](
        y, moments, gamma, beta, z, peaks, gamma.stride(0), beta.stride(0), windows, height, width, eps,
        C=channels, BLOCK=block, ACC=accumulator(y)[1],
    )  # fmt: skip
    return z, peaks


def pull_back(
    gz: Tensor, y: Tensor, peaks: Tensor, moments: Tensor, gamma: Tensor, beta: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """gy, shaped as y, and the sums `[T, 2, C]` A = gβ and B = gγ."""
    tasks, images, height, width, channels = y.shape
    sums = first_sums(gz, peaks, gamma, beta)
    block = _windows(channels)
    gy = empty(y, *y.shape)
    cells = images * blocks(height, 2) * blocks(width, 2)
    device.pull_back[(blocks(cells, block), tasks)](
        gz, y, moments, gamma, beta, sums, gy, gamma.stride(0), beta.stride(0), cells, images, height, width,
        eps, C=channels, BLOCK=block, ACC=accumulator(y)[1],
    )  # fmt: skip
    return gy, sums


def first_sums(gz: Tensor, peaks: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """A and B, `[T, 2, C]`: they need only what was pooled."""
    tasks, images, height, width, channels = gz.shape
    windows = images * height * width
    block = 4 * _windows(channels)
    parts = min(_PARTS // tasks + 1, blocks(windows, 4 * block))
    dtype, acc = accumulator(gz)
    partial = empty(gz, tasks, parts, 2, channels, dtype=dtype)
    device.sum_first[(parts, tasks)](
        gz, peaks, gamma, beta, partial, gamma.stride(0), beta.stride(0), windows,
        C=channels, BLOCK=block, ACC=acc, num_warps=8,
    )  # fmt: skip
    return joined(partial)


def pull_back_again(
    u: Tensor, c: Tensor, b: Tensor, gz: Tensor, y: Tensor, sums: Tensor, moments: Tensor, gamma: Tensor,
    beta: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """ḡz, ȳ and γ̄ for cotangents u of gy, c of gγ and b of gβ."""
    tasks, images, height, width, channels = y.shape
    cells = images * blocks(height, 2) * blocks(width, 2)
    block = _windows(channels)
    parts = min(_PARTS // tasks + 1, blocks(cells, 2 * block))
    dtype, acc = accumulator(y)
    partial = empty(y, tasks, parts, 3, channels, dtype=dtype)
    device.sum_second[(parts, tasks)](
        u, gz, y, moments, gamma, beta, partial, gamma.stride(0), beta.stride(0), cells, images, height,
        width, eps, C=channels, BLOCK=block, ACC=acc,
    )  # fmt: skip
    ggz, gy, ggamma = empty(gz, *gz.shape), empty(y, *y.shape), empty(y, tasks, channels, dtype=dtype)
    device.pull_back_again[(blocks(cells, block), tasks)](
        u, c, b, gz, y, moments, sums, joined(partial), gamma, beta, ggz, gy, ggamma, c.stride(0),
        b.stride(0), gamma.stride(0), beta.stride(0), cells, images, height, width, eps,
        C=channels, BLOCK=block, ACC=acc,
    )  # fmt: skip
    return ggz, gy, ggamma


def _windows(channels: int) -> int:
    """Windows a program takes, so that four pixels of each fit in registers."""
    return max(8, 2048 // channels)
