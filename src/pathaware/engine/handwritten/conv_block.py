"""Convolution, batch norm, ReLU and max-pool as one layer with hand-written derivatives.

Tasks with many pixels run PyTorch's convolution, one after another. Small ones, and all in double precision,
run as one matrix product with a row per position of the filter, and derivatives are products of the same
rows; a grouped convolution would be slower than both. Images are channels last: `[T, N, H, W, C]`.

With z the convolution, c = z − μ, n = c r its normalised form, a = γ n + β, and M values per channel:

    ∂L/∂z = γ r (∂L/∂a − A/M − n B/M),   A = Σ ∂L/∂a,   B = Σ n ∂L/∂a

Pooling passes on one position in k × k, so ∂L/∂a is zero at all others, and everything after batch norm is
computed at the pooled size. Only c, z and their derivatives are as large as the image. μ removes the
convolution's bias, so the bias has no effect and its gradient is zero.

If μ and r are constant, all terms with 1/M vanish, and there is no bias (see `models.traced.fold_biases`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathaware.core.batch_norm import FrozenBatchNorm
from pathaware.core.path import being_traced
from pathaware.engine.handwritten.layers import Layer, Parameters, Pulled, Saved, where_positive

NATIVE_PIXELS = 500
"""Pixels per task from which PyTorch's convolution is faster than a matrix product: the rows, k·k times as
large as the images, then no longer fit in the processor's cache."""

_HAS_MKLDNN = torch.backends.mkldnn.is_available()  # without it, PyTorch's convolution copies rows as well
_convolution_backward: Any = torch.ops.aten.convolution_backward.default
_max_pool_with_indices: Any = torch.ops.aten.max_pool2d_with_indices.default


def windows(images: Tensor, kernel: int, padding: int) -> Tensor:
    """The inputs of a filter at each of its H′ × W′ positions: `[T, N·H′·W′, kernel·kernel·C]`."""
    if padding:
        images = torch.constant_pad_nd(images, (0, 0, padding, padding, padding, padding))
    views = images.unfold(2, kernel, 1).unfold(3, kernel, 1)  # T, N, H′, W′, C, k, k
    return views.permute(0, 1, 2, 3, 5, 6, 4).reshape(images.shape[0], -1, kernel**2 * images.shape[-1])


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
class Convolution:
    """A convolution without bias, with stride 1, and its derivatives.

    `source` is what the convolution reads: the images, or the rows of `windows`. The derivative with respect
    to the filters reads it again. Results are `[T, N·H′·W′, C′]`.
    """

    kernel: int
    padding: int

    def source(self, x: Tensor) -> Tensor:
        return x if self._native(x) else windows(x, self.kernel, self.padding)

    def __call__(self, source: Tensor, weight: Tensor) -> Tensor:
        if source.ndim == 3:
            return torch.bmm(source, filters(weight))
        tasks = zip(_per_task(source), weight.unbind(), strict=True)
        return _joined([torch.conv2d(x, w, padding=self.padding) for x, w in tasks])

    def gradients(
        self, source: Tensor, gz: Tensor, x: Tensor, weight: Tensor, needs_gx: bool
    ) -> tuple[Tensor | None, Tensor]:
        """The gradients of the input `[T, N, H, W, C]` and of the filters `[T, C′, C, k, k]`."""
        if source.ndim == 3:
            gw = unfilter(torch.bmm(source.mT, gz), weight.shape)
            return self.input_gradient(gz, x, weight) if needs_gx else None, gw
        inputs, weights = self._backward(gz, source, weight, [needs_gx, True, False])
        return _joined(inputs).view(x.shape) if needs_gx else None, torch.stack(weights)

    def input_gradient(self, gz: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """The gradient of the input alone; `x` gives the shape."""
        if self._native(x):
            return _joined(self._backward(gz, x, weight, [True, False, False])[0]).view(x.shape)
        rows = windows(self._images(gz, x), self.kernel, self.kernel - 1 - self.padding)
        return torch.bmm(rows, mirrored(weight)).view(x.shape)

    def sides(self, x: Tensor) -> tuple[int, int]:
        """Height and width of the result."""
        more = 2 * self.padding - self.kernel + 1
        return x.shape[2] + more, x.shape[3] + more

    def _native(self, x: Tensor) -> bool:
        _, count, height, width, _ = x.shape
        large = count * height * width >= NATIVE_PIXELS and x.dtype == torch.float32 and _HAS_MKLDNN
        return large and not being_traced()  # as products in a file: ONNX has no gradient of a convolution

    def _images(self, gz: Tensor, x: Tensor) -> Tensor:
        return gz.view(*x.shape[:2], *self.sides(x), gz.shape[-1])

    def _backward(
        self, gz: Tensor, x: Tensor, weight: Tensor, wanted: list[bool]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The gradients of the input and of the filters of every task, those that are wanted."""
        sizes = [1, 1], [self.padding] * 2, [1, 1]
        tasks = zip(_per_task(self._images(gz, x)), _per_task(x), weight.unbind(), strict=True)
        found = [_convolution_backward(*task, None, *sizes, False, [0, 0], 1, wanted) for task in tasks]
        return [inputs for inputs, _, _ in found], [filters for _, filters, _ in found]


def _per_task(images: Tensor) -> tuple[Tensor, ...]:
    """Images `[T, N, H, W, C]` as `[N, C, H, W]` of each task."""
    return images.permute(0, 1, 4, 2, 3).unbind()


def _joined(images: list[Tensor]) -> Tensor:
    """Images `[N, C, H, W]` of every task as rows `[T, N·H·W, C]`."""
    rows = [each.permute(0, 2, 3, 1) for each in images]
    joined = rows[0] if len(rows) == 1 else torch.stack(rows)
    return joined.reshape(len(rows), -1, joined.shape[-1])


class PlainConvolution(Layer):
    """A convolution with or without bias, on its own: images `[T, N, H, W, C]` to `[T, N, H′, W′, C′]`."""

    frozen = None

    def __init__(self, kernel: int, padding: int) -> None:
        self.kernel = kernel
        self.padding = padding
        self.convolution = Convolution(kernel, padding)

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Saved]:
        source = self.convolution.source(x)
        return self._images(self._affine(p, source), x), [x, source]

    def backward(self, p: Parameters, saved: Saved, g: Tensor, needs_gx: bool) -> Pulled:
        x, source = saved[0], saved.pop()  # `tangent` gathers rows again
        gz = g.reshape(len(x), -1, g.shape[-1])
        saved.append(gz)
        return self._gradients(p, source, gz, x, needs_gx)

    def tangent(self, p: Parameters, v: Parameters, saved: Saved, dx: Tensor | None) -> tuple[Tensor, Any]:
        x = saved[0]
        source, dx_source = self.convolution.source(x), None
        dz = self._affine(v, source)
        if dx is not None:
            dx_source = self.convolution.source(dx)
            dz += self.convolution(dx_source, p["weight"])
        return self._images(dz, x), (source, dx_source)

    def hvp(
        self, p: Parameters, v: Parameters, saved: Saved, tangent: Any, dg: Tensor, needs_gx: bool
    ) -> Pulled:
        (x, gz), (source, dx_source) = saved, tangent
        dgx, hv = self._gradients(p, source, dg.reshape(gz.shape), x, needs_gx)
        if dx_source is not None:
            more = self.convolution.gradients(dx_source, gz, x, p["weight"], False)[1]
            hv["weight"] = hv["weight"] + more
        return None if dgx is None else dgx.add_(self.convolution.input_gradient(gz, x, v["weight"])), hv

    def _affine(self, p: Parameters, source: Tensor) -> Tensor:
        z = self.convolution(source, p["weight"])
        return z.add_(_channels(p["bias"])) if "bias" in p else z

    def _gradients(self, p: Parameters, source: Tensor, gz: Tensor, x: Tensor, needs_gx: bool) -> Pulled:
        gx, weight = self.convolution.gradients(source, gz, x, p["weight"], needs_gx)
        return gx, {"weight": weight, **({"bias": gz.sum(1)} if "bias" in p else {})}

    def _images(self, z: Tensor, x: Tensor) -> Tensor:
        return z.view(*x.shape[:2], *self.convolution.sides(x), -1)


@dataclass(frozen=True)
class _Tangent:
    """Results of the tangent pass that `hvp` needs; `_passed` means at positions that the pool passes on."""

    source: Tensor
    dx_source: Tensor | None
    dz: Tensor
    dz_passed: Tensor
    dn_passed: Tensor
    dz_mean: Tensor
    dz_n_mean: Tensor


class ConvBlock(Layer):
    """Maps images `[T, N, H, W, C]` to `[T, N, H′, W′, C′]`; parameters `weight`, `bias`, `gain`, `shift`.

    With `frozen`, batch norm has its constant statistics.
    """

    def __init__(
        self, kernel: int, padding: int, pool: int, eps: float, frozen: FrozenBatchNorm | None = None
    ) -> None:
        self.kernel = kernel
        self.padding = padding
        self.convolution = Convolution(kernel, padding)
        self.pool = pool
        self.eps = eps
        self.frozen = frozen

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Saved]:
        tasks, count = x.shape[:2]
        height, width = self.convolution.sides(x)
        source = self.convolution.source(x)
        c = self.convolution(source, p["weight"])
        r = self._centre(c)
        positions, c_passed = self._passed_on(c.view(tasks, count, height, width, -1), p["gain"])
        n_passed = c_passed * r
        gain, shift = _channels(p["gain"]), _channels(p["shift"])
        y = torch.addcmul(shift, gain, n_passed).clamp_min_(0)
        images = y.view(tasks, count, height // self.pool, width // self.pool, -1)
        return images, [x, r, c, positions, n_passed, y, source]

    def _centre(self, c: Tensor) -> Tensor:
        """Subtract μ from c, in place; return r, `[T, 1, C]` or, if it is constant, `[1, 1, C]`."""
        if self.frozen is not None:
            c.sub_(self.frozen.running_mean)
            return (self.frozen.running_var + self.eps).rsqrt().view(1, 1, -1)
        c.sub_(c.mean(1, keepdim=True))
        return (c.square().mean(1, keepdim=True) + self.eps).rsqrt()  # `var_mean` is many times slower here

    def predict(self, p: Parameters, x: Tensor, support: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.frozen is not None:
            constant = self.frozen.running_mean, self.frozen.running_var
            of_x = self._normalised(p, x, self._convolved(p, x), *constant)
            return of_x, None if support is None else self.predict(p, support, None)[0]
        if support is None:
            return self.predict_with_statistics(p, x)[0], None
        of_support, mean, variance = self.predict_with_statistics(p, support)
        return self._normalised(p, x, self._convolved(p, x), mean, variance), of_support

    def predict_with_statistics(self, p: Parameters, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs for x, and mean and variance `[T, 1, C]` of the convolution without its bias."""
        z = self._convolved(p, x)
        mean = z.mean(1, keepdim=True)
        variance = (z - mean).square_().mean(1, keepdim=True)
        return self._normalised(p, x, z, mean, variance), mean, variance

    def _convolved(self, p: Parameters, x: Tensor) -> Tensor:
        return self.convolution(self.convolution.source(x), p["weight"])

    def _normalised(self, p: Parameters, x: Tensor, z: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Batch norm, ReLU and max-pool of z; x gives the shape."""
        scale = _channels(p["gain"]) * (variance + self.eps).rsqrt()
        shift = torch.addcmul(_channels(p["shift"]), mean, scale, value=-1)
        a = torch.addcmul(shift, scale, z)
        images = a.view(-1, *self.convolution.sides(x), a.shape[-1]).permute(0, 3, 1, 2)
        pooled = F.max_pool2d(images, self.pool).clamp_min_(0).permute(0, 2, 3, 1)
        return pooled.reshape(*x.shape[:2], *pooled.shape[1:])

    def backward(self, p: Parameters, saved: Saved, g: Tensor, needs_gx: bool) -> Pulled:
        x, r, c, positions, n_passed, y = saved[:6]
        source = saved.pop()  # if it is rows, many times larger than images: `tangent` gathers them again
        ga = where_positive(g.reshape(y.shape), y)
        total, product = _sum(ga), _sum(ga * n_passed)
        k = _channels(p["gain"]) * r
        if self.frozen is None:
            share = k * (-1 / c.shape[1])
            constant, slant = share * total, share * product
            gz = torch.addcmul(constant, slant * r, c)
            _put(gz, positions, torch.addcmul(constant, slant, n_passed).addcmul_(k, ga))
        else:
            gz = torch.zeros_like(c)
            _put(gz, positions, k * ga)
        gx, weight = self.convolution.gradients(source, gz, x, p["weight"], needs_gx)
        saved += [ga, gz, total, product]
        return gx, self._gradients(p, weight, product, total)

    def tangent(self, p: Parameters, v: Parameters, saved: Saved, dx: Tensor | None) -> tuple[Tensor, Any]:
        x, r, c, positions, n_passed, y = saved[:6]
        source, dx_source = self.convolution.source(x), None
        dz = self.convolution(source, v["weight"])
        if dx is not None:
            dx_source = self.convolution.source(dx)
            dz += self.convolution(dx_source, p["weight"])
        dz_mean = dz_n_mean = torch.zeros_like(r)
        if self.frozen is None:
            dz_mean, dz_n_mean = dz.mean(1, keepdim=True), (dz * c).mean(1, keepdim=True) * r
        dz_passed = _at(dz, positions)
        dn_passed = r * torch.addcmul(dz_passed - dz_mean, n_passed, dz_n_mean, value=-1)
        dy = torch.addcmul(_channels(v["shift"]), _channels(v["gain"]), n_passed)
        dy = where_positive(dy.addcmul_(_channels(p["gain"]), dn_passed), y)
        height, width = self.convolution.sides(x)
        images = dy.view(*x.shape[:2], height // self.pool, width // self.pool, -1)
        return images, _Tangent(source, dx_source, dz, dz_passed, dn_passed, dz_mean, dz_n_mean)

    def hvp(
        self, p: Parameters, v: Parameters, saved: Saved, tangent: _Tangent, dg: Tensor, needs_gx: bool
    ) -> Pulled:
        x, r, c, positions, n_passed, y, ga, gz, total, product = saved
        M = c.shape[1]
        dga = where_positive(dg.reshape(y.shape), y)
        dtotal, dproduct = _sum(dga), _sum(torch.addcmul(dga * n_passed, ga, tangent.dn_passed))
        k = _channels(p["gain"]) * r
        dk = r * (_channels(v["gain"]) - k * tangent.dz_n_mean)
        # ∂L/∂z = k ∂L/∂a − k A/M − (k B/M) n, differentiated term by term; dn in terms of dz and n
        if self.frozen is None:
            slant = -k * product / M
            by_dz = slant * r
            by_n = -(dk * product + k * dproduct) / M - by_dz * tangent.dz_n_mean
            constant = -(dk * total + k * dtotal) / M - by_dz * tangent.dz_mean
            dgz = torch.addcmul(constant, by_n * r, c).addcmul_(by_dz, tangent.dz)
            passed = torch.addcmul(constant, by_n, n_passed).addcmul_(by_dz, tangent.dz_passed)
            passed.addcmul_(dk, ga)
        else:
            dgz, passed = torch.zeros_like(c), dk * ga
        _put(dgz, positions, passed.addcmul_(k, dga))
        dgx, weight = self.convolution.gradients(tangent.source, dgz, x, p["weight"], needs_gx)
        if tangent.dx_source is not None:
            weight = weight + self.convolution.gradients(tangent.dx_source, gz, x, p["weight"], False)[1]
        dgx = None if dgx is None else dgx.add_(self.convolution.input_gradient(gz, x, v["weight"]))
        return dgx, self._gradients(p, weight, dproduct, dtotal)

    def _passed_on(self, c: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        """The positions that the pool passes on, as rows of each image, `[T·N, H′·W′, C]`, and c there,
        `[T, N·H′·W′, C]`.

        The largest γ c r + β lies where c is largest, or, for a negative gain, smallest.
        """
        tasks, channels = c.shape[0], c.shape[-1]
        signed = being_traced() or bool((gain <= 0).any())
        images = c * gain.sign().view(tasks, 1, 1, 1, channels) if signed else c
        images = images.flatten(0, 1).permute(0, 3, 1, 2)
        largest, positions = _max_pool_with_indices(images, [self.pool, self.pool])
        positions = positions.permute(0, 2, 3, 1).flatten(1, 2)
        if signed:
            return positions, _at(c.flatten(1, 3), positions)
        return positions, largest.permute(0, 2, 3, 1).reshape(tasks, -1, channels)

    @staticmethod
    def _gradients(p: Parameters, weight: Tensor, gain: Tensor, shift: Tensor) -> Parameters:
        bias = {"bias": torch.zeros_like(shift)} if "bias" in p else {}
        return {"weight": weight, "gain": gain, "shift": shift, **bias}


def _channels(values: Tensor) -> Tensor:
    return values.unsqueeze(1)


def _sum(values: Tensor) -> Tensor:
    return values.sum(1, keepdim=True)


def _at(values: Tensor, positions: Tensor) -> Tensor:
    """The values `[T, N·H·W, C]` at positions of each image: `[T, N·H′·W′, C]`."""
    return _by_image(values, positions).gather(1, positions).view(len(values), -1, values.shape[-1])


def _put(values: Tensor, positions: Tensor, passed: Tensor) -> None:
    _by_image(values, positions).scatter_(1, positions, passed.view(positions.shape))


def _by_image(values: Tensor, positions: Tensor) -> Tensor:
    return values.view(len(positions), -1, values.shape[-1])
