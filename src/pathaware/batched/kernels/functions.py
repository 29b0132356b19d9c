"""The kernels as operations that PyTorch can differentiate twice.

Each operation is followed by its vector-Jacobian product as an operation of its own, whose derivative is
written out: that is all a meta-gradient asks for. A third derivative raises.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from pathaware.batched.kernels import stem
from pathaware.batched.kernels.convolution import Packed, convolve
from pathaware.batched.kernels.normalisation import normalise, pull_back, pull_back_again
from pathaware.batched.kernels.weight_gradient import weight_gradient


class Convolution(Function):
    """x `[T, N, H, W, I]`, filters `[T, O, I, 3, 3]` → y `[T, N, H, W, O]`, and its moments `[T, 2, O]`.

    The moments are by-products; the derivative through them is `Normalisation`'s, which knows they are y's.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.packed = Packed(_rows(weight), x)
        y, moments = convolve(x, ctx.packed.forward, stats=True)
        assert moments is not None
        ctx.save_for_backward(x, weight)
        ctx.mark_non_differentiable(moments)
        return y, moments

    @staticmethod
    def backward(ctx: Any, gy: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        gx, gw = ConvolutionGradient.apply(gy, x, weight, ctx.packed, ctx.needs_input_grad[0])
        return gx, gw


class ConvolutionGradient(Function):
    """gy, x, filters → gx and gw. Images need no gradient, so gx is left out where nobody asks for it."""

    @staticmethod
    def forward(
        ctx: Any, gy: Tensor, x: Tensor, weight: Tensor, packed: Packed, wanted: bool
    ) -> tuple[Tensor | None, Tensor]:
        ctx.packed = packed
        ctx.save_for_backward(gy, x)
        ctx.set_materialize_grads(False)
        gx = convolve(gy, packed.reverse)[0] if wanted else None
        return gx, weight_gradient(x, gy)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor | None, v: Tensor | None) -> tuple[Tensor | None, ...]:
        gy, x = ctx.saved_tensors
        ggy = gx = gw = None
        if v is not None:
            filters = Packed(_rows(v), x)
            gx = convolve(gy, filters.reverse)[0] if ctx.needs_input_grad[1] else None
            if u is None:
                ggy = convolve(x, filters.forward)[0]
            else:
                ggy = convolve(u, ctx.packed.forward, x, filters.forward)[0]
        elif u is not None:
            ggy = convolve(u, ctx.packed.forward)[0]
        if u is not None:
            gw = weight_gradient(u, gy)
        return ggy, gx, gw, None, None


class Normalisation(Function):
    """y with its moments, γ and β `[T, C]` → relu(batch norm) pooled 2×2."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, moments: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
        z, peaks = normalise(y, moments, gamma, beta, eps)
        ctx.save_for_backward(y, moments, gamma, beta, peaks)
        ctx.eps = eps
        return z

    @staticmethod
    def backward(ctx: Any, gz: Tensor) -> tuple[Tensor | None, ...]:
        y, moments, gamma, beta, peaks = ctx.saved_tensors
        gy, ggamma, gbeta = NormalisationGradient.apply(gz, y, moments, gamma, beta, peaks, ctx.eps)
        return gy, None, ggamma, gbeta, None


class NormalisationGradient(Function):
    """gz, y, γ → gy, gγ, gβ."""

    @staticmethod
    def forward(
        ctx: Any,
        gz: Tensor,
        y: Tensor,
        moments: Tensor,
        gamma: Tensor,
        beta: Tensor,
        peaks: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        gz = gz.contiguous()
        gy, sums = pull_back(gz, y, peaks, moments, gamma, beta, eps)
        ctx.save_for_backward(gz, y, moments, gamma, beta, sums)
        ctx.eps = eps
        return gy, sums[:, 1], sums[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor, c: Tensor, b: Tensor) -> tuple[Tensor | None, ...]:
        gz, y, moments, gamma, beta, sums = ctx.saved_tensors
        ggz, gy, ggamma = pull_back_again(u, _rows(c), _rows(b), gz, y, sums, moments, gamma, beta, ctx.eps)
        return ggz, gy, None, ggamma, None, None, None


class Stem(Function):
    """Images `[T, N, I, H, W]`, filters, γ and β → the first block's output `[T, N, H/2, W/2, O]`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
        ctx.images, ctx.eps = stem.Images.of(x), eps
        ctx.moments = stem.moments_of(ctx.images, weight)
        z, ctx.peaks = stem.normalise(ctx.images, weight, ctx.moments, gamma, beta, eps)
        ctx.save_for_backward(weight, gamma, beta)
        return z

    @staticmethod
    def backward(ctx: Any, gz: Tensor) -> tuple[Tensor | None, ...]:
        gradients = StemGradient.apply(gz, *ctx.saved_tensors, ctx.images, ctx.moments, ctx.peaks, ctx.eps)
        return None, *gradients, None


class StemGradient(Function):
    """gz, filters, γ → gw, gγ, gβ."""

    @staticmethod
    def forward(
        ctx: Any, gz: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, images: stem.Images,
        moments: Tensor, peaks: Tensor, eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        gz = gz.contiguous()
        gw, sums = stem.pull_back(gz, images, weight, peaks, moments, gamma, beta, eps)
        ctx.images, ctx.moments, ctx.sums, ctx.eps = images, moments, sums, eps
        ctx.save_for_backward(gz, weight, gamma, beta)
        return gw, sums[:, 1], sums[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor, c: Tensor, b: Tensor) -> tuple[Tensor | None, ...]:
        gz, weight, gamma, beta = ctx.saved_tensors
        ggz, gw, ggamma = stem.pull_back_again(
            _rows(v), _rows(c), _rows(b), gz, ctx.images, weight, ctx.sums, ctx.moments, gamma,
            beta, ctx.eps,
        )  # fmt: skip
        return ggz, gw, ggamma, None, None, None, None, None


def _rows(data: Tensor) -> Tensor:
    """Kernels take a view of a point `[T, D]` as it is, but each task's own part must be contiguous."""
    return data if data[0].is_contiguous() else data.contiguous()


def block(x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    """Convolution 3×3, batch norm, ReLU and max-pool of `x [T, N, H, W, I]` → `[T, N, H/2, W/2, O]`.

    A bias of the convolution is not taken: batch norm subtracts it again.
    """
    y, moments = Convolution.apply(x, weight)
    z: Tensor = Normalisation.apply(y, moments, gamma, beta, eps)
    return z
