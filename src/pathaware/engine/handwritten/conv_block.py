"""Convolution, batch norm, ReLU and max-pool as one layer with hand-written derivatives.

The convolution is a matrix product with one row per position of the filter. On a CPU that is faster than a
grouped convolution when each task has its own filters, and derivatives are matrix products of the same rows.
Images are channels last: `[T, N, H, W, C]`.

With z the convolution, n = (z − μ) r its normalised form, a = γ n + β, and M values per channel:

    ∂L/∂z = γ r (∂L/∂a − A/M − n B/M),   A = Σ ∂L/∂a,   B = Σ n ∂L/∂a

Pooling passes on one position in k × k, so ∂L/∂a is zero at all others, and everything after batch norm is
computed at the pooled size. Only z, n and their derivatives are as large as the image. μ removes the
convolution's bias, so the bias has no effect and its gradient is zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from pathaware.core.path import being_traced
from pathaware.engine.handwritten.layers import Layer, Parameters, Saved, where_positive


def windows(images: Tensor, kernel: int, padding: int) -> Tensor:
    """The inputs of a filter at each of its H′ × W′ positions: `[T, N·H′·W′, kernel·kernel·C]`.

    Concatenates shifted images, because these are copied in long runs; one strided view of all is not.
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
    """`[T, k·k·C′, C]`: `windows(g) @ mirrored(W)` is the gradient of the convolution's input for g."""
    return weight.flip(3, 4).permute(0, 3, 4, 1, 2).reshape(len(weight), -1, weight.shape[2])


def unfilter(matrix: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `filters`, as a view: `[T, k·k·C, C′]` → `[T, C′, C, k, k]`."""
    tasks, outputs, inputs, kernel, _ = shape
    return matrix.view(tasks, kernel, kernel, inputs, outputs).permute(0, 4, 3, 1, 2)


@dataclass(frozen=True)
class _Tangent:
    """Results of the tangent pass that `hvp` needs; `_passed` means at positions that the pool passes on."""

    rows: Tensor
    dx_rows: Tensor | None
    dz: Tensor
    dz_passed: Tensor
    dn_passed: Tensor
    dz_mean: Tensor
    dz_n_mean: Tensor


class ConvBlock(Layer):
    """Maps images `[T, N, H, W, C]` to `[T, N, H′, W′, C′]`; parameters `weight`, `bias`, `gain`, `shift`."""

    def __init__(self, kernel: int, padding: int, pool: int, eps: float) -> None:
        self.kernel = kernel
        self.padding = padding
        self.pool = pool
        self.eps = eps

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Saved]:
        tasks, count = x.shape[:2]
        height, width = self._sides(x)
        rows = self._windows(x)
        n = torch.bmm(rows, filters(p["weight"]))
        n.sub_(n.mean(1, keepdim=True))
        r = (n.square().mean(1, keepdim=True) + self.eps).rsqrt()  # `var_mean` is many times slower here
        n.mul_(r)
        positions = self._passed_on(n.view(tasks, count, height, width, -1), p["gain"])
        n_passed = _at(n, positions)
        gain, shift = _channels(p["gain"]), _channels(p["shift"])
        y = torch.addcmul(shift, gain, n_passed).clamp_min_(0)
        images = y.view(tasks, count, height // self.pool, width // self.pool, -1)
        return images, [x, r, n, positions, n_passed, y, rows]

    def backward(
        self, p: Parameters, saved: Saved, g: Tensor, gradient: Parameters, needs_input_grad: bool
    ) -> Tensor | None:
        x, r, n, positions, n_passed, y = saved[:6]
        rows = saved.pop()  # many times larger than an image, so `tangent` gathers them again
        ga = where_positive(g.reshape(y.shape), y)
        total, product = _sum(ga), _sum(ga * n_passed)
        k = _channels(p["gain"]) * r
        constant, slant = -k * total / n.shape[1], -k * product / n.shape[1]
        gz = torch.addcmul(constant, slant, n)
        _put(gz, positions, torch.addcmul(constant, slant, n_passed).addcmul_(k, ga))
        self._write_gradients(p, torch.bmm(rows.mT, gz), product, total, gradient)
        saved += [ga, gz, total, product]
        if not needs_input_grad:
            return None
        return torch.bmm(self._windows_back(gz, x), mirrored(p["weight"])).view(x.shape)

    def tangent(
        self, p: Parameters, v: Parameters, saved: Saved, dx: Tensor | None
    ) -> tuple[Tensor, _Tangent]:
        x, r, n, positions, n_passed, y = saved[:6]
        rows, dx_rows = self._windows(x), None
        dz = torch.bmm(rows, filters(v["weight"]))
        if dx is not None:
            dx_rows = self._windows(dx)
            dz.baddbmm_(dx_rows, filters(p["weight"]))
        dz_mean, dz_n_mean = dz.mean(1, keepdim=True), (dz * n).mean(1, keepdim=True)
        dz_passed = _at(dz, positions)
        dn_passed = r * torch.addcmul(dz_passed - dz_mean, n_passed, dz_n_mean, value=-1)
        dy = torch.addcmul(_channels(v["shift"]), _channels(v["gain"]), n_passed)
        dy = where_positive(dy.addcmul_(_channels(p["gain"]), dn_passed), y)
        height, width = self._sides(x)
        images = dy.view(*x.shape[:2], height // self.pool, width // self.pool, -1)
        return images, _Tangent(rows, dx_rows, dz, dz_passed, dn_passed, dz_mean, dz_n_mean)

    def hvp(
        self,
        p: Parameters,
        v: Parameters,
        saved: Saved,
        tangent: _Tangent,
        dg: Tensor,
        hv: Parameters,
        needs_input_grad: bool,
    ) -> Tensor | None:
        x, r, n, positions, n_passed, y, ga, gz, total, product = saved
        M = n.shape[1]
        dga = where_positive(dg.reshape(y.shape), y)
        dtotal, dproduct = _sum(dga), _sum(torch.addcmul(dga * n_passed, ga, tangent.dn_passed))
        k = _channels(p["gain"]) * r
        dk = r * (_channels(v["gain"]) - k * tangent.dz_n_mean)
        # ∂L/∂z = k ∂L/∂a − k A/M − (k B/M) n, differentiated term by term; dn in terms of dz and n
        slant = -k * product / M
        by_dz = slant * r
        by_n = -(dk * product + k * dproduct) / M - by_dz * tangent.dz_n_mean
        constant = -(dk * total + k * dtotal) / M - by_dz * tangent.dz_mean
        dgz = torch.addcmul(constant, by_n, n).addcmul_(by_dz, tangent.dz)
        passed = torch.addcmul(constant, by_n, n_passed).addcmul_(by_dz, tangent.dz_passed)
        _put(dgz, positions, passed.addcmul_(dk, ga).addcmul_(k, dga))
        weight = torch.bmm(tangent.rows.mT, dgz)
        if tangent.dx_rows is not None:
            weight.baddbmm_(tangent.dx_rows.mT, gz)
        self._write_gradients(p, weight, dproduct, dtotal, hv)
        if not needs_input_grad:
            return None
        dgx = torch.bmm(self._windows_back(dgz, x), mirrored(p["weight"]))
        return dgx.baddbmm_(self._windows_back(gz, x), mirrored(v["weight"])).view(x.shape)

    def _sides(self, x: Tensor) -> list[int]:
        """Height and width of the convolution's output."""
        return [side + 2 * self.padding - self.kernel + 1 for side in x.shape[2:4]]

    def _windows(self, x: Tensor) -> Tensor:
        return windows(x, self.kernel, self.padding)

    def _windows_back(self, gz: Tensor, x: Tensor) -> Tensor:
        """The windows of the filter that maps gradients of outputs to gradients of inputs."""
        images = gz.view(*x.shape[:2], *self._sides(x), -1)
        return windows(images, self.kernel, self.kernel - 1 - self.padding)

    def _passed_on(self, n: Tensor, gain: Tensor) -> Tensor:
        """The positions that the pool passes on, as rows of `[T, N·H·W, C]`: `[T, N·H′·W′, C]`.

        The largest γ n + β lies where n is largest, or, for a negative gain, smallest.
        """
        tasks, count, height, width, channels = n.shape
        if being_traced() or bool((gain <= 0).any()):
            n = n * gain.sign().view(tasks, 1, 1, 1, channels)
        images = n.flatten(0, 1).permute(0, 3, 1, 2)
        _, positions = F.max_pool2d(images, self.pool, return_indices=True)
        offsets = torch.arange(count, device=n.device).view(1, count, 1, 1) * (height * width)
        return (positions.permute(0, 2, 3, 1).reshape(tasks, count, -1, channels) + offsets).flatten(1, 2)

    @staticmethod
    def _write_gradients(
        p: Parameters, weight: Tensor, gain: Tensor, shift: Tensor, gradient: Parameters
    ) -> None:
        gradient["weight"] = unfilter(weight, p["weight"].shape)
        gradient["gain"], gradient["shift"] = gain.squeeze(1), shift.squeeze(1)
        if "bias" in p:
            gradient["bias"] = torch.zeros_like(gradient["shift"])


def _channels(values: Tensor) -> Tensor:
    return values.unsqueeze(1)


def _sum(values: Tensor) -> Tensor:
    return values.sum(1, keepdim=True)


def _at(values: Tensor, positions: Tensor) -> Tensor:
    return values.gather(1, positions)


def _put(values: Tensor, positions: Tensor, passed: Tensor) -> None:
    values.scatter_(1, positions, passed)
