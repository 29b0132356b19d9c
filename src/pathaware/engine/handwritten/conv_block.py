"""Convolution as a matrix product: one row for every place of the filter.

On a CPU a convolution with filters of each task's own is faster so than as a grouped convolution, and its
derivatives are matrix products of the same rows. Images are channels last: `[T, N, H, W, C]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pathaware.core.path import tracing
from pathaware.engine.handwritten.layers import Kept, Layer, Parameters


def windows(images: Tensor, kernel: int, padding: int) -> Tensor:
    """`[T, N·H′·W′, kernel·kernel·C]`: what a filter sees at each of its H′ × W′ places.

    Joined from shifted images: each is copied in long runs, which one strided view of all is not.
    """
    if padding:
        images = F.pad(images, (0, 0, padding, padding, padding, padding))
    height, width = (side - kernel + 1 for side in images.shape[2:4])
    shifts = [images[:, :, i : i + height, j : j + width] for i in range(kernel) for j in range(kernel)]
    return torch.cat(shifts, dim=-1).flatten(1, 3)


def filters(weight: Tensor) -> Tensor:
    """Weights `[T, C′, C, k, k]` as a matrix `[T, k·k·C, C′]`: `windows(x) @ filters(W)` is convolution."""
    return weight.permute(0, 3, 4, 2, 1).reshape(len(weight), -1, weight.shape[1])


def mirrored(weight: Tensor) -> Tensor:
    """`[T, k·k·C′, C]`: `windows(g) @ mirrored(W)` is convolution's derivative in its input along g."""
    return weight.flip(3, 4).permute(0, 3, 4, 1, 2).reshape(len(weight), -1, weight.shape[2])


def unfilter(matrix: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `filters`, as a view: `[T, k·k·C, C′]` → `[T, C′, C, k, k]`."""
    tasks, outputs, inputs, kernel, _ = shape
    return matrix.view(tasks, kernel, kernel, inputs, outputs).permute(0, 4, 3, 1, 2)


# Convolution, batch norm, ReLU and max-pool as one layer, images channels last.
#
# With z the convolution, n = (z − μ) r its normalised form, a = γ n + β, and M values to a channel:
#
#     ∂L/∂z = γ r (∂L/∂a − A/M − n B/M),   A = Σ ∂L/∂a,   B = Σ n ∂L/∂a
#
# Pooling passes one place in k × k on, so ∂L/∂a is zero at all others, and whatever follows batch norm happens
# at the pooled size. Only z, n and their derivatives are as large as the image. The convolution's bias is
# taken out again by μ: it moves nothing, and its slope is zero.


@dataclass(frozen=True)
class _Tangent:
    """What `hvp` needs of the tangent pass; `_passed` means at the places that the pool passes on."""

    rows: Tensor
    dx_rows: Tensor | None
    dz: Tensor
    dz_passed: Tensor
    dn_passed: Tensor
    dz_mean: Tensor
    dz_n_mean: Tensor


class ConvBlock(Layer):
    """Images `[T, N, H, W, C]` to `[T, N, H′, W′, C′]`; parameters `weight`, `bias`, `gain` and `shift`."""

    def __init__(self, kernel: int, padding: int, pool: int, eps: float) -> None:
        self.kernel = kernel
        self.padding = padding
        self.pool = pool
        self.eps = eps

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Kept]:
        tasks, count = x.shape[:2]
        height, width = self._sides(x)
        rows = self._windows(x)
        n = torch.bmm(rows, filters(p["weight"]))
        n.sub_(n.mean(1, keepdim=True))
        r = (n.square().mean(1, keepdim=True) + self.eps).rsqrt()  # `var_mean` is many times slower here
        n.mul_(r)
        places = self._passed_on(n.view(tasks, count, height, width, -1), p["gain"])
        n_passed = _at(n, places)
        gain, shift = _channels(p["gain"]), _channels(p["shift"])
        y = torch.addcmul(shift, gain, n_passed).clamp_min_(0)
        images = y.view(tasks, count, height // self.pool, width // self.pool, -1)
        return images, [x, r, n, places, n_passed, y, rows]

    def backward(
        self, p: Parameters, kept: Kept, g: Tensor, slope: Parameters, wanted: bool
    ) -> Tensor | None:
        x, r, n, places, n_passed, y = kept[:6]
        rows = kept.pop()  # many times larger than an image: `tangent` had better gather them again
        ga = _where_positive(g.reshape(y.shape), y)
        total, product = _sum(ga), _sum(ga * n_passed)
        k = _channels(p["gain"]) * r
        constant, slant = -k * total / n.shape[1], -k * product / n.shape[1]
        gz = torch.addcmul(constant, slant, n)
        _put(gz, places, torch.addcmul(constant, slant, n_passed).addcmul_(k, ga))
        self._slopes(p, torch.bmm(rows.mT, gz), product, total, slope)
        kept += [ga, gz, total, product]
        return torch.bmm(self._windows_back(gz, x), mirrored(p["weight"])).view(x.shape) if wanted else None

    def tangent(self, p: Parameters, v: Parameters, kept: Kept, dx: Tensor | None) -> tuple[Tensor, _Tangent]:
        x, r, n, places, n_passed, y = kept[:6]
        rows, dx_rows = self._windows(x), None
        dz = torch.bmm(rows, filters(v["weight"]))
        if dx is not None:
            dx_rows = self._windows(dx)
            dz.baddbmm_(dx_rows, filters(p["weight"]))
        dz_mean, dz_n_mean = dz.mean(1, keepdim=True), (dz * n).mean(1, keepdim=True)
        dz_passed = _at(dz, places)
        dn_passed = r * torch.addcmul(dz_passed - dz_mean, n_passed, dz_n_mean, value=-1)
        dy = torch.addcmul(_channels(v["shift"]), _channels(v["gain"]), n_passed)
        dy = _where_positive(dy.addcmul_(_channels(p["gain"]), dn_passed), y)
        height, width = self._sides(x)
        images = dy.view(*x.shape[:2], height // self.pool, width // self.pool, -1)
        return images, _Tangent(rows, dx_rows, dz, dz_passed, dn_passed, dz_mean, dz_n_mean)

    def hvp(
        self,
        p: Parameters,
        v: Parameters,
        kept: Kept,
        seen: _Tangent,
        dg: Tensor,
        curvature: Parameters,
        wanted: bool,
    ) -> Tensor | None:
        x, r, n, places, n_passed, y, ga, gz, total, product = kept
        M = n.shape[1]
        dga = _where_positive(dg.reshape(y.shape), y)
        dtotal, dproduct = _sum(dga), _sum(torch.addcmul(dga * n_passed, ga, seen.dn_passed))
        k = _channels(p["gain"]) * r
        dk = r * (_channels(v["gain"]) - k * seen.dz_n_mean)
        # ∂L/∂z = k ∂L/∂a − k A/M − (k B/M) n, differentiated term by term; dn in terms of dz and n
        slant = -k * product / M
        by_dz = slant * r
        by_n = -(dk * product + k * dproduct) / M - by_dz * seen.dz_n_mean
        constant = -(dk * total + k * dtotal) / M - by_dz * seen.dz_mean
        dgz = torch.addcmul(constant, by_n, n).addcmul_(by_dz, seen.dz)
        passed = torch.addcmul(constant, by_n, n_passed).addcmul_(by_dz, seen.dz_passed)
        _put(dgz, places, passed.addcmul_(dk, ga).addcmul_(k, dga))
        weight = torch.bmm(seen.rows.mT, dgz)
        if seen.dx_rows is not None:
            weight.baddbmm_(seen.dx_rows.mT, gz)
        self._slopes(p, weight, dproduct, dtotal, curvature)
        if not wanted:
            return None
        dgx = torch.bmm(self._windows_back(dgz, x), mirrored(p["weight"]))
        return dgx.baddbmm_(self._windows_back(gz, x), mirrored(v["weight"])).view(x.shape)

    def _sides(self, x: Tensor) -> list[int]:
        """Height and width of the convolution's output."""
        return [side + 2 * self.padding - self.kernel + 1 for side in x.shape[2:4]]

    def _windows(self, x: Tensor) -> Tensor:
        return windows(x, self.kernel, self.padding)

    def _windows_back(self, gz: Tensor, x: Tensor) -> Tensor:
        """The windows of a filter that looks from outputs back to inputs."""
        images = gz.view(*x.shape[:2], *self._sides(x), -1)
        return windows(images, self.kernel, self.kernel - 1 - self.padding)

    def _passed_on(self, n: Tensor, gain: Tensor) -> Tensor:
        """Which places the pool passes on, as rows of `[T, N·H·W, C]`: `[T, N·H′·W′, C]`.

        The largest γ n + β lies where n is largest, or, for a negative gain, smallest.
        """
        tasks, count, height, width, channels = n.shape
        if tracing() or bool((gain <= 0).any()):
            n = n * gain.sign().view(tasks, 1, 1, 1, channels)
        images = n.flatten(0, 1).permute(0, 3, 1, 2)
        _, places = F.max_pool2d(images, self.pool, return_indices=True)
        offsets = torch.arange(count, device=n.device).view(1, count, 1, 1) * (height * width)
        return (places.permute(0, 2, 3, 1).reshape(tasks, count, -1, channels) + offsets).flatten(1, 2)

    @staticmethod
    def _slopes(p: Parameters, weight: Tensor, gain: Tensor, shift: Tensor, slope: Parameters) -> None:
        slope["weight"] = unfilter(weight, p["weight"].shape)
        slope["gain"], slope["shift"] = gain.squeeze(1), shift.squeeze(1)
        if "bias" in p:
            slope["bias"] = torch.zeros_like(slope["shift"])


def _channels(values: Tensor) -> Tensor:
    return values.unsqueeze(1)


def _sum(values: Tensor) -> Tensor:
    return values.sum(1, keepdim=True)


def _at(values: Tensor, places: Tensor) -> Tensor:
    return values.gather(1, places)


def _put(values: Tensor, places: Tensor, passed: Tensor) -> None:
    values.scatter_(1, places, passed)


def _where_positive(values: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(values, y, 0)  # type: ignore[no-any-return]
