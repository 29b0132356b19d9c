"""What a layer must know for its part of a slope and of a Hessian-vector product."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Parameters = dict[str, Tensor]
"""A layer's parameters, or what belongs to each of them, by name; all with a leading task axis."""

Kept = list[Tensor]
"""What a layer remembers from one pass to the next."""


class FirstOrder(ABC):
    """The first two of a layer's passes, which a loss and its slope take."""

    @abstractmethod
    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Kept]: ...

    @abstractmethod
    def backward(
        self, p: Parameters, kept: Kept, g: Tensor, slope: Parameters, wanted: bool
    ) -> Tensor | None:
        """May add to `kept` what later passes need."""


class Layer(FirstOrder):
    """Four passes, written `forward`, `backward`, and the derivative of each along one direction.

    With a loss L and a direction v in parameter space, d below is the derivative along v:

    | pass | from | to |
    |---|---|---|
    | `forward` | x | y |
    | `backward` | ∂L/∂y | ∂L/∂x; writes ∂L/∂(parameters) |
    | `tangent` | dx | dy |
    | `hvp` | d(∂L/∂y) | d(∂L/∂x); writes d(∂L/∂(parameters)), this layer's part of the Hessian times v |

    Nothing of this is recorded by autograd. The first layer's input is constant: `dx` is None there and
    with `wanted` False no derivative with respect to it is computed.
    """

    @abstractmethod
    def tangent(self, p: Parameters, v: Parameters, kept: Kept, dx: Tensor | None) -> tuple[Tensor, Any]:
        """dy, and whatever `hvp` wants to find again."""

    @abstractmethod
    def hvp(
        self,
        p: Parameters,
        v: Parameters,
        kept: Kept,
        seen: Any,
        dg: Tensor,
        curvature: Parameters,
        wanted: bool,
    ) -> Tensor | None: ...


# Layers that work on rows `[T, N, F]`: linear, and activations.


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

    def hvp(
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

    def hvp(
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

    def hvp(
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

    def hvp(
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
