"""The kernels as operations that autograd can differentiate twice.

Each operation is followed by its vector-Jacobian product as a separate operation, whose derivative is written
out. A meta-gradient needs no more; a third derivative raises. Autograd saves the tensors that derivatives
need, so that checkpointing can drop them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from pathaware.core.path import differentiable_once
from pathaware.engine.kernels import needed_now, normalisation, residual, stem
from pathaware.engine.kernels.convolution import convolve, pack
from pathaware.engine.kernels.launch import accumulator, empty
from pathaware.engine.kernels.normalisation import Norm, normalise
from pathaware.engine.kernels.stem import FirstBlock
from pathaware.engine.kernels.weight_gradient import weight_gradient
from pathaware.models.traced import Pooling


class Convolution(Function):
    """x `[T, N, H, W, I]`, filters `[T, O, I, 3, 3]` → y `[T, N, H, W, O]`, and its moments `[T, 2, O]`.

    The moments are by-products, left out without `stats`; `Normalisation`, which knows that they are those of
    y, differentiates through them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, stats: bool) -> tuple[Tensor, Tensor | None]:
        ctx.set_materialize_grads(False)
        forward, reverse = pack(_rows(weight), x)
        y, moments = convolve(x, forward, stats=stats)
        ctx.save_for_backward(x, weight, forward, reverse)
        if moments is not None:
            ctx.mark_non_differentiable(moments)
        return y, moments

    @staticmethod
    def backward(ctx: Any, gy: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        gx, gw = ConvolutionGradient.apply(gy, *ctx.saved_tensors, needed_now(ctx, 0))
        return gx, gw, None


class ConvolutionGradient(Function):
    """gy, x, filters → gx, if it is needed, and gw."""

    @staticmethod
    def forward(
        ctx: Any, gy: Tensor, x: Tensor, weight: Tensor, forward: Tensor, reverse: Tensor, needs_gx: bool
    ) -> tuple[Tensor | None, Tensor]:
        gy = gy.contiguous()
        ctx.save_for_backward(gy, x, forward)
        ctx.set_materialize_grads(False)
        ctx.shape = weight.shape
        return convolve(gy, reverse)[0] if needs_gx else None, _weight_gradient(x, gy, weight.shape)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, u: Tensor | None, v: Tensor | None) -> tuple[Tensor | None, ...]:
        gy, x, forward = ctx.saved_tensors
        ggy = gx = gw = None
        if v is not None:
            along, back = pack(_rows(v), x)
            gx = convolve(gy, back)[0] if ctx.needs_input_grad[1] else None
            # both parts of ḡy in one sum, which is written once
            ggy = convolve(x, along)[0] if u is None else convolve(u.contiguous(), forward, x, along)[0]
        elif u is not None:
            ggy = convolve(u.contiguous(), forward)[0]
        if u is not None:
            gw = _weight_gradient(u.contiguous(), gy, ctx.shape)
        return ggy, gx, gw, None, None, None


class Normalisation(Function):
    """y with its moments, γ and β `[T, C]` → relu(batch norm), pooled 2×2 or not."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, moments: Tensor, gamma: Tensor, beta: Tensor, eps: float, pooling: Pooling
    ) -> Tensor:
        z, peaks = normalise(Norm(y, moments, gamma, beta, eps, pooling))
        ctx.save_for_backward(y, moments, gamma, beta, peaks)
        ctx.settings = eps, pooling
        return z

    @staticmethod
    def backward(ctx: Any, gz: Tensor) -> tuple[Tensor | None, ...]:
        y, moments, gamma, beta, peaks = ctx.saved_tensors
        gy, ggamma, gbeta = NormalisationGradient.apply(gz, y, moments, gamma, beta, peaks, *ctx.settings)
        return gy, None, ggamma, gbeta, None, None


class NormalisationGradient(Function):
    """gz, y, γ → gy, gγ, gβ."""

    @staticmethod
    def forward(
        ctx: Any, gz: Tensor, y: Tensor, moments: Tensor, gamma: Tensor, beta: Tensor, peaks: Tensor,
        eps: float, pooling: Pooling,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        gz = gz.contiguous()
        ggamma, gbeta = _per_channel(gamma, gz)
        norm = Norm(y, moments, gamma, beta, eps, pooling)
        gy, sums = normalisation.backward(norm, gz, peaks, ggamma, gbeta)
        ctx.save_for_backward(gz, y, moments, gamma, beta, peaks, sums)
        ctx.settings = eps, pooling
        return gy, ggamma, gbeta

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, u: Tensor, c: Tensor, b: Tensor) -> tuple[Tensor | None, ...]:
        gz, y, moments, gamma, beta, peaks, sums = ctx.saved_tensors
        c, b, norm = _rows(c), _rows(b), Norm(y, moments, gamma, beta, *ctx.settings)
        ggz, second = normalisation.tangent(norm, u, c, b, gz)
        ggamma, gbeta = _per_channel(gamma, gz)
        gy = normalisation.hvp(norm, None, u, c, gz, peaks, sums, second, ggamma, gbeta)
        return ggz, gy, None, ggamma, *[None] * 4


class LeakyNorm(Function):
    """y `[T, …, C]`, γ and β `[T, C]` → leaky(batch norm); `negative_slope` is 0 for a ReLU, 1 for none.

    `moments` are those of y, if they are known.
    """

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, gamma: Tensor, beta: Tensor, eps: float, slope: float,
        moments: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        moments = residual.moments_of(y) if moments is None else moments
        ctx.save_for_backward(y, gamma, beta, moments)
        ctx.settings = eps, slope
        return residual.normalise(y, moments, gamma, beta, eps, slope)

    @staticmethod
    def backward(ctx: Any, gz: Tensor) -> tuple[Tensor | None, ...]:
        return *LeakyNormGradient.apply(gz, *ctx.saved_tensors, *ctx.settings), None, None, None


class LeakyNormGradient(Function):
    """gz, y, γ → gy, gγ, gβ."""

    @staticmethod
    def forward(
        ctx: Any, gz: Tensor, y: Tensor, gamma: Tensor, beta: Tensor, moments: Tensor, eps: float,
        slope: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        gz = gz.contiguous()
        gy, sums = residual.backward(gz, y, moments, gamma, beta, eps, slope)
        ctx.save_for_backward(gz, y, gamma, beta, moments, sums)
        ctx.settings = eps, slope
        return gy, sums[:, 1], sums[:, 0]

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, u: Tensor, c: Tensor, b: Tensor) -> tuple[Tensor | None, ...]:
        gz, y, gamma, beta, moments, sums = ctx.saved_tensors
        norm = moments, gamma, beta, sums, *ctx.settings
        ggz, gy, ggamma = residual.second(u.contiguous(), _rows(c), _rows(b), gz, y, *norm)
        return ggz, gy, ggamma, *[None] * 4


class Join(Function):
    """x and y `[T, N, H, W, C]` → the largest of each 2×2 pixels of leaky(x + y)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, slope: float) -> Tensor:
        z, where = residual.join(x.contiguous(), y.contiguous(), slope)
        ctx.save_for_backward(where)
        ctx.size, ctx.slope = x.shape, slope
        return z

    @staticmethod
    def backward(ctx: Any, gz: Tensor) -> tuple[Tensor | None, ...]:
        g = JoinGradient.apply(gz, *ctx.saved_tensors, ctx.size, ctx.slope)
        return g, g, None


class JoinGradient(Function):
    """gz → the gradient of both summands."""

    @staticmethod
    def forward(ctx: Any, gz: Tensor, where: Tensor, size: torch.Size, slope: float) -> Tensor:
        ctx.save_for_backward(where)
        ctx.slope = slope
        return residual.spread(gz.contiguous(), where, size, slope)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        (where,) = ctx.saved_tensors
        return residual.collect(u.contiguous(), where, ctx.slope), None, None, None


class Stem(Function):
    """Images `[T, N, I, H, W]`, filters, γ and β → the first block's output `[T, N, H/2, W/2, O]`.

    Batch norm uses the constant `moments` `[2, O]` if they are given.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float,
        moments: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        images = stem.Images.of(x)
        moments = stem.moments_of(images, weight) if moments is None else moments
        z, peaks = stem.normalise(FirstBlock(images, weight, moments, gamma, beta, eps))
        ctx.size, ctx.eps = (images.height, images.width), eps
        ctx.save_for_backward(weight, gamma, beta, images.stored, moments, peaks)
        return z

    @staticmethod
    def backward(ctx: Any, gz: Tensor) -> tuple[Tensor | None, ...]:
        return None, *StemGradient.apply(gz, *ctx.saved_tensors, ctx.size, ctx.eps), None, None


class StemGradient(Function):
    """gz, filters, γ → gw, gγ, gβ."""

    @staticmethod
    def forward(
        ctx: Any, gz: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, padded: Tensor, moments: Tensor,
        peaks: Tensor, size: tuple[int, int], eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        gz = gz.contiguous()
        block = FirstBlock(stem.Images(padded, *size), weight, moments, gamma, beta, eps)
        (ggamma, gbeta), gw = _per_channel(gamma, gz), empty(gz, *weight.shape, dtype=accumulator(gz)[0])
        sums = stem.backward(block, gz, peaks, gw, ggamma, gbeta)
        ctx.size, ctx.eps = size, eps
        ctx.save_for_backward(gz, weight, gamma, beta, padded, moments, peaks, sums)
        return gw, ggamma, gbeta

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, v: Tensor, c: Tensor, b: Tensor) -> tuple[Tensor | None, ...]:
        gz, weight, gamma, beta, padded, moments, peaks, sums = ctx.saved_tensors
        block = FirstBlock(stem.Images(padded, *ctx.size), weight, moments, gamma, beta, ctx.eps)
        v, c, b = _rows(v), _rows(c), _rows(b)
        ggz, second = stem.tangent(block, v, c, b, gz)
        (ggamma, gbeta), gw = _per_channel(gamma, gz), empty(gz, *weight.shape, dtype=accumulator(gz)[0])
        stem.hvp(block, None, v, c, gz, peaks, sums, second, gw, ggamma, gbeta)
        return ggz, gw, ggamma, *[None] * 6


def _rows(data: Tensor) -> Tensor:
    """Make each task's part contiguous, as kernels require; they accept a view of a point `[T, D]`."""
    return data if data[0].is_contiguous() else data.contiguous()


def _per_channel(gamma: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Room for the gradients of γ and β."""
    both = empty(like, len(gamma), 2, gamma.shape[1], dtype=accumulator(like)[0])
    return both[:, 0], both[:, 1]


def _weight_gradient(x: Tensor, gy: Tensor, shape: torch.Size) -> Tensor:
    gw = empty(x, *shape, dtype=accumulator(x)[0])
    weight_gradient(x, gy, gw)
    return gw


def block(
    x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float, pooling: Pooling = "max",
    moments: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Convolution 3×3, batch norm, ReLU and pooling of `x [T, N, H, W, I]` → `[T, N, H/2, W/2, O]`.

    Batch norm uses the constant `moments` `[2, O]` if they are given. There is no bias of the convolution,
    because batch norm would subtract it again.
    """
    y, of_y = Convolution.apply(x, weight, moments is None)
    moments = of_y if moments is None else moments
    z: Tensor = Normalisation.apply(y, moments, gamma, beta, eps, pooling)
    return z


def first_block(
    x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float, moments: Tensor | None = None
) -> Tensor:
    """`block` for images `[T, N, I, H, W]`, with max-pooling."""
    z: Tensor = Stem.apply(x, _rows(weight), gamma, beta, eps, moments)
    return z


def inductive_block(
    x: Tensor, count: int, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float, pooling: Pooling = "max"
) -> Tensor:
    """`block` with the statistics of the first `count` images of each task; not differentiable."""
    y, _ = convolve(x, pack(_rows(weight), x)[0])
    own = y[:, :count].flatten(1, 3)
    variance, mean = torch.var_mean(own.to(gamma.dtype), dim=1, correction=0)
    return normalise(Norm(y, torch.stack([mean, variance], dim=1), gamma, beta, eps, pooling))[0]


def inductive_stem(x: Tensor, count: int, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float) -> Tensor:
    """`first_block` with the statistics of the first `count` images of each task; not differentiable."""
    weight = _rows(weight)
    moments = stem.moments_of(stem.Images.of(x[:, :count]), weight)
    return stem.normalise(FirstBlock(stem.Images.of(x), weight, moments, gamma, beta, eps))[0]
