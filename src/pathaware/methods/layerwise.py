"""Per-layer helpers for ALFA, L2F, MeTAL, GAP and Meta-Curvature.

Following their authors, a *layer* is one parameter tensor: a weight and its bias are two layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function

from pathaware.core.operations import sums_of_parts
from pathaware.core.parameters import NORMS, Layout
from pathaware.core.path import differentiable_once

_layer_norm_backward: Any = torch.ops.aten.native_layer_norm_backward


def without_norms(network: nn.Module | Layout, adapt_norms: bool = False) -> Layout:
    """A layout of all parameters but the gains and shifts of norm layers, or, with `adapt_norms`, of all."""
    if isinstance(network, Layout):
        return network
    norms = {
        f"{name}.{parameter}"
        for name, module in network.named_modules()
        if isinstance(module, NORMS)
        for parameter, _ in module.named_parameters(recurse=False)
    }
    return Layout.of(network, adapted=lambda name: adapt_norms or name not in norms)


class Layers(nn.Module):
    """Where the layers, of these sizes, lie in a flat vector of D entries."""

    starts: Tensor
    shares: Tensor

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = list(sizes)
        lengths = torch.tensor([0, *self.sizes])
        self.register_buffer("starts", lengths.cumsum(0), persistent=False)
        self.register_buffer("shares", 1 / lengths[1:], persistent=False)

    def means(self, values: Tensor) -> Tensor:
        """The mean over each layer of points or gradients `[T, D]`: `[T, layers]`."""
        sums: Tensor = _Sums.apply(values, self)
        return sums * self.shares

    def spread(self, numbers: Tensor) -> Tensor:
        """Repeat one number per layer, `[T, layers]`, for each of the layer's parameters: `[T, D]`."""
        repeated: Tensor = _Spread.apply(numbers, self)
        return repeated


class _Sums(Function):
    """The sum over each layer; autograd would launch one operation per layer, and add their derivatives."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, layers: Layers) -> Tensor:
        ctx.layers = layers
        return sums_of_parts(values, layers.starts, layers.sizes)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Spread.apply(gradient, ctx.layers), None


class _Spread(Function):
    """The derivative of `_Sums`, whose derivative is `_Sums`."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, layers: Layers) -> Tensor:
        ctx.layers = layers
        columns = zip(numbers.split(1, 1), layers.sizes, strict=True)
        return torch.cat([column.expand(-1, size) for column, size in columns], dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Sums.apply(gradient, ctx.layers), None


def map_layers(layout: Layout, modules: nn.ModuleList, values: Tensor) -> Tensor:
    """Apply one module per layer to its part `[T, numel]` of `values [T, D]`: `[T, D]`."""
    parts = values.split_with_sizes(layout.sizes, dim=1)
    return torch.cat([module(part) for module, part in zip(modules, parts, strict=True)], dim=1)


def perceptron(inputs: int, outputs: int, *, output: float | None = None) -> nn.Sequential:
    """Two linear layers with as many hidden units as inputs; `output`: what it returns before training."""
    last = nn.Linear(inputs, outputs)
    if output is not None:
        nn.init.zeros_(last.weight)
        nn.init.constant_(last.bias, output)
    return nn.Sequential(nn.Linear(inputs, inputs), nn.ReLU(), last)


def joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """`torch.cat`, whose second derivative in PyTorch fills a tensor with zeros for every part."""
    whole: Tensor = _Joined.apply(dim, *parts)
    return whole


class _Joined(Function):
    @staticmethod
    def forward(ctx: Any, dim: int, *parts: Tensor) -> Tensor:
        ctx.dim, ctx.sizes = dim, [part.shape[dim] for part in parts]
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *gradient.split_with_sizes(ctx.sizes, ctx.dim)


def standardised(values: Tensor, eps: float = 1e-12) -> Tensor:
    """Normalise each task's values `[T, …]` to zero mean and unit variance, (x − μ) / √(s² + ε)."""
    normal: Tensor = _Standardised.apply(values.flatten(1), eps)
    return normal.view(values.shape)


class _Standardised(Function):
    """y = (x − μ) / σ of rows `[T, n]`, with σ² = Σ(x − μ)² / (n − 1) + ε.

    Layer norm divides by n instead of n − 1: its result for ε (n − 1) / n is y / k, with k² = (n − 1) / n.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        n = x.shape[1]
        k = sqrt((n - 1) / n)
        y, mean, scale = torch.native_layer_norm(x, [n], None, None, eps * k * k)
        y = y * k
        ctx.save_for_backward(x, y, mean, scale)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return _StandardisedGradient.apply(g, *ctx.saved_tensors), None


class _StandardisedGradient(Function):
    """J g, with the symmetric J = (I − 11ᵀ/n − yyᵀ/(n − 1)) / σ."""

    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, y: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        product = _jacobian(g, x, mean, scale)
        ctx.save_for_backward(g, x, y, mean, scale, product)
        return product

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, u: Tensor) -> tuple[Tensor | None, ...]:
        """J u, and the derivative of uᵀJg with respect to x, through y and through 1/σ:

        −(J ((u·y) g + (g·y) u) + (uᵀJg) y) / ((n − 1) σ)
        """
        g, x, y, mean, scale, product = ctx.saved_tensors
        n = x.shape[1]
        both = torch.stack([g, u], dim=1)
        of_g, of_u = torch.bmm(both, y.unsqueeze(2)).unbind(1)
        pulled = _jacobian(torch.addcmul(of_u * g, of_g, u), x, mean, scale)
        total = torch.addcmul(pulled, (u * product).sum(1, keepdim=True), y)
        return (
            _jacobian(u, x, mean, scale),
            total * (scale * (-sqrt((n - 1) / n) / (n - 1))),
            None,
            None,
            None,
        )


def _jacobian(g: Tensor, x: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    n = x.shape[1]
    wanted = [True, False, False]
    product: Tensor = _layer_norm_backward(g.contiguous(), x, [n], mean, scale, None, None, wanted)[0]
    return product * sqrt((n - 1) / n)
