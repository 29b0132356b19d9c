"""Layers and losses with hand-written gradients and Hessian-vector products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pathaware.core.few_shot import wrong_features
from pathaware.core.losses import Loss, check_shapes, cross_entropy, mean_squared_error, wrong_labels
from pathaware.core.path import being_traced

Parameters = dict[str, Tensor]
"""A layer's parameters by name, or their gradients; all with a leading task axis."""

Saved = list[Tensor]
"""Tensors that a layer saves from one pass for the next."""

Pulled = tuple[Tensor | None, Parameters]
"""The gradient of a layer's input, unless that is constant, and those of its parameters."""

_threshold_backward: Any = torch.ops.aten.threshold_backward.default


class Layer(ABC):
    """A layer with four passes: `forward`, `backward`, and the derivative of each along one direction.

    With a loss L and a direction v in parameter space, d below is the derivative along v:

    | pass | from | to |
    |---|---|---|
    | `forward` | x | y |
    | `backward` | ∂L/∂y | ∂L/∂x and ∂L/∂(parameters) |
    | `tangent` | dx | dy |
    | `hvp` | d(∂L/∂y) | d(∂L/∂x) and d(∂L/∂(parameters)), this layer's part of the Hessian times v |

    Autograd records none of this. The first layer's input is constant: there `dx` is None, and `needs_gx` is
    False.
    """

    @abstractmethod
    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Saved]:
        """y, and what later passes need."""

    @abstractmethod
    def backward(self, p: Parameters, saved: Saved, g: Tensor, needs_gx: bool) -> Pulled:
        """∂L/∂x and the gradient of the parameters for g = ∂L/∂y; may add to `saved` for later passes."""

    @abstractmethod
    def tangent(self, p: Parameters, v: Parameters, saved: Saved, dx: Tensor | None) -> tuple[Tensor, Any]:
        """dy, and what `hvp` needs of this pass."""

    @abstractmethod
    def hvp(
        self, p: Parameters, v: Parameters, saved: Saved, tangent: Any, dg: Tensor, needs_gx: bool
    ) -> Pulled:
        """d(∂L/∂x) and the part of the Hessian-vector product for dg = d(∂L/∂y)."""

    def predict(self, p: Parameters, x: Tensor, support: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The outputs for x and for the support set, whose statistics batch norm uses if it is given."""
        return self.forward(p, x)[0], None if support is None else self.forward(p, support)[0]


class Linear(Layer):
    """y = x Wᵀ + b on rows `[T, N, F]`."""

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Saved]:
        return _affine(p, x), [x]

    def backward(self, p: Parameters, saved: Saved, g: Tensor, needs_gx: bool) -> Pulled:
        saved.append(g)
        gradient = {"weight": torch.bmm(g.mT, saved[0])}
        if "bias" in p:
            gradient["bias"] = g.sum(1)
        return torch.bmm(g, p["weight"]) if needs_gx else None, gradient

    def tangent(self, p: Parameters, v: Parameters, saved: Saved, dx: Tensor | None) -> tuple[Tensor, Any]:
        dy = _affine(v, saved[0])
        return (dy if dx is None else dy.baddbmm_(dx, p["weight"].mT)), dx

    def hvp(
        self, p: Parameters, v: Parameters, saved: Saved, tangent: Any, dg: Tensor, needs_gx: bool
    ) -> Pulled:
        x, g = saved
        hv = {"weight": torch.bmm(dg.mT, x)}
        if tangent is not None:
            hv["weight"].baddbmm_(g.mT, tangent)
        if "bias" in p:
            hv["bias"] = dg.sum(1)
        return torch.bmm(dg, p["weight"]).baddbmm_(g, v["weight"]) if needs_gx else None, hv


def _affine(p: Parameters, x: Tensor) -> Tensor:
    weight, features = p["weight"].mT, x.shape[-1]
    if features != weight.shape[1]:
        raise wrong_features(p["weight"], features)
    if "bias" not in p:
        return torch.bmm(x, weight)
    # with a single feature, an elementwise product is faster than a matrix product
    join = torch.addcmul if features == 1 else torch.baddbmm
    return join(p["bias"].unsqueeze(1), x, weight)


class PiecewiseLinear(Layer):
    """A layer without parameters whose second derivative is zero: `hvp` is `backward` of another gradient."""

    def hvp(
        self, p: Parameters, v: Parameters, saved: Saved, tangent: Any, dg: Tensor, needs_gx: bool
    ) -> Pulled:
        return self.backward(p, saved, dg, needs_gx)


class ReLU(PiecewiseLinear):
    """y = max(x, 0). Every pass applies the same mask."""

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Saved]:
        y = x.clamp_min(0)
        return y, [y]

    def backward(self, p: Parameters, saved: Saved, g: Tensor, needs_gx: bool) -> Pulled:
        return where_positive(g, saved[0]), {}

    def tangent(self, p: Parameters, v: Parameters, saved: Saved, dx: Tensor | None) -> tuple[Tensor, Any]:
        return (torch.zeros_like(saved[0]) if dx is None else where_positive(dx, saved[0])), None


def where_positive(values: Tensor, y: Tensor) -> Tensor:
    """The values where y > 0, zero elsewhere."""
    found: Tensor = _threshold_backward(values, y, 0)
    return found


class Flatten(PiecewiseLinear):
    """Turns images `[T, N, H, W, C]` into rows `[T, N, C·H·W]`, in the order that `nn.Flatten` gives them."""

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Saved]:
        return x.movedim(-1, 2).flatten(2), [x]

    def backward(self, p: Parameters, saved: Saved, g: Tensor, needs_gx: bool) -> Pulled:
        tasks, count, height, width, channels = saved[0].shape
        return g.view(tasks, count, channels, height, width).movedim(2, -1), {}

    def tangent(self, p: Parameters, v: Parameters, saved: Saved, dx: Tensor | None) -> tuple[Tensor, Any]:
        return self.forward(p, torch.zeros_like(saved[0]) if dx is None else dx)[0], None


class Smooth(Layer):
    """y = f(x), element by element, for any smooth activation f; autograd computes f′ and f″."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def forward(self, p: Parameters, x: Tensor) -> tuple[Tensor, Saved]:
        return self.function(x), [x]

    def backward(self, p: Parameters, saved: Saved, g: Tensor, needs_gx: bool) -> Pulled:
        first, second = self._derivatives(saved[0])
        saved[:] = [first, second * g]
        return first * g, {}

    def tangent(self, p: Parameters, v: Parameters, saved: Saved, dx: Tensor | None) -> tuple[Tensor, Any]:
        dx = torch.zeros_like(saved[0]) if dx is None else dx
        return saved[0] * dx, dx

    def hvp(
        self, p: Parameters, v: Parameters, saved: Saved, tangent: Any, dg: Tensor, needs_gx: bool
    ) -> Pulled:
        first, second_g = saved
        return torch.addcmul(first * dg, second_g, tangent), {}

    def _derivatives(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """f′ and f″ at x."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (first,) = torch.autograd.grad(self.function(x).sum(), x, create_graph=True)
            if not first.requires_grad:  # f is linear
                return first, torch.zeros_like(x)
            (second,) = torch.autograd.grad(first.sum(), x)
        return first.detach(), second


class HandwrittenLoss(ABC):
    """A loss of outputs `[T, N, F]` and targets, per task: `[T]`."""

    @abstractmethod
    def supports(self, targets: Tensor) -> bool:
        """True if the loss is defined for these targets; others are left to autograd."""

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Losses `[T]`."""

    @abstractmethod
    def gradient(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Saved]:
        """The gradient of the losses with respect to the outputs, and what `hvp` needs."""

    def loss_and_gradient(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Saved]:
        """`losses`, and what `gradient` returns."""
        gradient, saved = self.gradient(outputs, targets)
        return self.losses(outputs, targets), gradient, saved

    @abstractmethod
    def hvp(self, saved: Saved, d: Tensor) -> Tensor:
        """The derivative of that gradient along a direction d of the outputs."""


class MeanSquaredError(HandwrittenLoss):
    def supports(self, targets: Tensor) -> bool:
        return targets.ndim == 3

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return mean_squared_error(outputs, targets)

    def gradient(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Saved]:
        check_shapes(outputs, targets)
        return (outputs - targets).mul_(_scale(outputs)), []

    def loss_and_gradient(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Saved]:
        check_shapes(outputs, targets)
        error = outputs - targets
        gradient = error * _scale(error)
        return torch.linalg.vecdot(error.flatten(1), gradient.flatten(1)) / 2, gradient, []

    def hvp(self, saved: Saved, d: Tensor) -> Tensor:
        return d * _scale(d)


def _scale(outputs: Tensor) -> float:
    return 2 / (outputs.shape[1] * outputs.shape[2])


class CrossEntropy(HandwrittenLoss):
    def supports(self, targets: Tensor) -> bool:
        labels = targets.ndim == 2 and targets.dtype == torch.long
        return labels and (being_traced() or bool(targets.min() >= 0))  # negative labels are to be ignored

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)

    def gradient(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Saved]:
        share = 1 / targets.shape[1]
        probabilities = outputs.softmax(-1)
        gradient = probabilities * share
        try:
            gradient.scatter_add_(-1, targets.unsqueeze(-1), gradient.new_full((*targets.shape, 1), -share))
        except RuntimeError:
            if int(targets.max()) < outputs.shape[-1]:
                raise
            raise wrong_labels(targets, outputs.shape[-1]) from None
        return gradient, [probabilities]

    def hvp(self, saved: Saved, d: Tensor) -> Tensor:
        (probabilities,) = saved
        moved = probabilities * d
        return torch.addcmul(moved, probabilities, moved.sum(-1, keepdim=True), value=-1) / d.shape[1]


HANDWRITTEN_LOSSES: dict[Loss, HandwrittenLoss] = {
    mean_squared_error: MeanSquaredError(),
    cross_entropy: CrossEntropy(),
}
"""Hand-written losses, by the per-task loss that they replace."""
