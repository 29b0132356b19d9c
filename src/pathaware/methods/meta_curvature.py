"""Meta-Curvature (Park and Oliva, NeurIPS 2019, arXiv:1902.03356).

    θⱼ₊₁ = θⱼ − α MC(∇L(θⱼ))
    MC(G) = G ×₁ M_o ×₂ M_i ×₃ M_f                   weights   G `[T, out, in, k]`, k taps; linear: no ×₃ M_f
    MC(g) = m ∘ g                                    vectors   g `[T, n]`: biases, norm gains and shifts

As one matrix, vec MC(G) = (M_o ⊗ M_i ⊗ M_f) vec G. M_o `[out, out]`, M_i `[in, in]` and M_f `[k, k]` are
initialised to the identity and m `[n]` to one, which is MAML. They are learned with θ₀ and shared by all
steps. They need not be positive: a step may ascend the support loss where that generalises better.

Departures from the authors' program: we found none, and follow the paper. Vectors, of which the paper does
not speak, have one factor per entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.parameters import Layout
from pathaware.methods.layerwise import map_layers
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method

Matrices = Literal["full", "diagonal"]


class Curvature(nn.Module):
    """Multiplies one tensor's gradient `[T, numel]` by a matrix or a vector along every axis."""

    def __init__(self, shape: Sequence[int], matrices: Matrices) -> None:
        super().__init__()
        square = matrices == "full" and len(shape) > 1
        self.axes = (*shape[:2], prod(shape[2:])) if len(shape) > 2 else tuple(shape) or (1,)
        self.factors = nn.ParameterList(torch.eye(n) if square else torch.ones(n) for n in self.axes)

    def forward(self, gradient: Tensor) -> Tensor:
        transformed: Tensor = gradient.unflatten(1, self.axes)
        for axis, factor in enumerate(self.factors, start=1):
            if factor.ndim == 2:
                transformed = torch.tensordot(transformed, factor, ([axis], [1])).movedim(-1, axis)
            else:
                transformed = (transformed.movedim(axis, -1) * factor).movedim(-1, axis)
        return transformed.flatten(1)


class MetaCurvature(GradientDescent):
    """Gradient descent with the constant step size α in a learned geometry.

    `matrices`: `full`, the method; `diagonal`, whose step sizes are products of one factor per output, one
    per input and one per tap, which stays small for wide layers.
    """

    def __init__(
        self, network: nn.Module | Layout, steps: int = 5, *, rate: float = 0.01, matrices: Matrices = "full"
    ) -> None:
        super().__init__(network, steps, rate=rate)
        if matrices not in get_args(Matrices):
            raise UsageError(f"matrices: {matrices!r} must be one of {', '.join(get_args(Matrices))}")
        self.curvatures = nn.ModuleList(Curvature(entry.shape, matrices) for entry in self.layout.entries)

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        return super().step(j, points, map_layers(self.layout, self.curvatures, gradient))


METHOD = Method(
    "meta-curvature",
    "learns matrices that multiply every gradient",
    "Park and Oliva, NeurIPS 2019, arXiv:1902.03356",
    2019,
    MetaCurvature,
)
