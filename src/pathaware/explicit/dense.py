"""Layers that work on rows `[T, N, F]`: linear, and activations."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pathaware.explicit.layer import Kept, Layer, Parameters


class Linear(Layer):
    """y = x Wᵀ + b"""

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Kept]:
        return _affine(p, x), [x]

    def backward(
        self, p: Parameters, kept: Kept, g: Tensor, slope: Parameters, wanted: bool
    ) -> Tensor | None:
        kept.append(g)
        slope["weight"] = torch.bmm(g.mT, kept[0])
        if "bias" in p:
            slope["bias"] = g.sum(1)
        return torch.bmm(g, p["weight"]) if wanted else None

    def tangent(
        self, p: Parameters, v: Parameters, kept: Kept, dx: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        dy = _affine(v, kept[0])
        return (dy if dx is None else dy.baddbmm_(dx, p["weight"].mT)), dx

    def curve(
        self,
        p: Parameters,
        v: Parameters,
        kept: Kept,
        seen: Tensor | None,
        dg: Tensor,
        curvature: Parameters,
        wanted: bool,
    ) -> Tensor | None:
        x, g = kept
        curvature["weight"] = torch.bmm(dg.mT, x)
        if seen is not None:
            curvature["weight"].baddbmm_(g.mT, seen)
        if "bias" in p:
            curvature["bias"] = dg.sum(1)
        return torch.bmm(dg, p["weight"]).baddbmm_(g, v["weight"]) if wanted else None


def _affine(p: Parameters, x: Tensor) -> Tensor:
    weight = p["weight"].mT
    if "bias" not in p:
        return torch.bmm(x, weight)
    # a product over one feature is no matrix product's work
    join = torch.addcmul if x.shape[-1] == 1 else torch.baddbmm
    return join(p["bias"].unsqueeze(1), x, weight)


class ReLU(Layer):
    """y = max(x, 0); its second derivative is nothing, so every pass is the same mask."""

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Kept]:
        y = x.clamp_min(0)
        return y, [y]

    def backward(
        self, p: Parameters, kept: Kept, g: Tensor, slope: Parameters, wanted: bool
    ) -> Tensor | None:
        return _where_positive(g, kept[0])

    def tangent(self, p: Parameters, v: Parameters, kept: Kept, dx: Tensor | None) -> tuple[Tensor, None]:
        return (torch.zeros_like(kept[0]) if dx is None else _where_positive(dx, kept[0])), None

    def curve(
        self,
        p: Parameters,
        v: Parameters,
        kept: Kept,
        seen: None,
        dg: Tensor,
        curvature: Parameters,
        wanted: bool,
    ) -> Tensor | None:
        return _where_positive(dg, kept[0])


def _where_positive(values: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward.default(values, y, 0)  # type: ignore[no-any-return]


class Smooth(Layer):
    """y = f(x), element by element: any activation, whose own derivatives autograd works out."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Kept]:
        return self.function(x), [x]

    def backward(
        self, p: Parameters, kept: Kept, g: Tensor, slope: Parameters, wanted: bool
    ) -> Tensor | None:
        first, second = self._derivatives(kept[0])
        kept[:] = [first, second * g]
        return first * g

    def tangent(self, p: Parameters, v: Parameters, kept: Kept, dx: Tensor | None) -> tuple[Tensor, Tensor]:
        dx = torch.zeros_like(kept[0]) if dx is None else dx
        return kept[0] * dx, dx

    def curve(
        self,
        p: Parameters,
        v: Parameters,
        kept: Kept,
        seen: Tensor,
        dg: Tensor,
        curvature: Parameters,
        wanted: bool,
    ) -> Tensor | None:
        first, second_g = kept
        return torch.addcmul(first * dg, second_g, seen)

    def _derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f′ and f″ at x."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (first,) = torch.autograd.grad(self.function(x).sum(), x, create_graph=True)
            if not first.requires_grad:  # f is linear
                return first, torch.zeros_like(x)
            (second,) = torch.autograd.grad(first.sum(), x)
        return first.detach(), second


class Flatten(Layer):
    """Images `[T, N, H, W, C]` to rows `[T, N, C·H·W]`, in the order that `nn.Flatten` gives them."""

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Kept]:
        return self._rows(x), [x]

    def backward(
        self, p: Parameters, kept: Kept, g: Tensor, slope: Parameters, wanted: bool
    ) -> Tensor | None:
        return self._images(g, kept[0])

    def tangent(self, p: Parameters, v: Parameters, kept: Kept, dx: Tensor | None) -> tuple[Tensor, None]:
        return self._rows(torch.zeros_like(kept[0]) if dx is None else dx), None

    def curve(
        self,
        p: Parameters,
        v: Parameters,
        kept: Kept,
        seen: None,
        dg: Tensor,
        curvature: Parameters,
        wanted: bool,
    ) -> Tensor | None:
        return self._images(dg, kept[0])

    @staticmethod
    def _rows(x: Tensor) -> Tensor:
        return x.movedim(-1, 2).flatten(2)

    @staticmethod
    def _images(g: Tensor, x: Tensor) -> Tensor:
        tasks, count, height, width, channels = x.shape
        return g.view(tasks, count, channels, height, width).movedim(2, -1)
