"""Meta-Curvature (Park and Oliva, NeurIPS 2019, arXiv:1902.03356).

    θⱼ₊₁ = θⱼ − α MC(∇L(θⱼ))
    MC(G) = G ×₁ M_o ×₂ M_i ×₃ M_f                   weights   G `[T, out, in, k]`, k taps; linear: no ×₃ M_f
    MC(g) = m ∘ g                                    vectors   g `[T, n]`: biases, norm gains and shifts

As one matrix, vec MC(G) = (M_o ⊗ M_i ⊗ M_f) vec G. M_o `[out, out]`, M_i `[in, in]` and M_f `[k, k]` start
at the identity and m `[n]` at one, which is MAML; they are learned with θ₀, and are the same for all steps.
Nothing keeps them positive: a step may climb the support loss where that generalises.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.parameters import Layout
from pathaware.core.rule import Rule
from pathaware.methods.method import Method

Matrices = Literal["full", "diagonal"]


class Curvature(nn.Module):
    """What one parameter's gradient `[T, numel]` is multiplied with, axis by axis."""

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


class MetaCurvature(Rule):
    """Gradient descent in a learned geometry, with the constant rate α.

    `matrices`: `full`, the method; `diagonal`, which makes a rate of one factor for the output, one for the
    input and one for the tap, and stays small however wide a layer is.
    """

    def __init__(
        self, network: nn.Module | Layout, steps: int = 5, *, rate: float = 0.01, matrices: Matrices = "full"
    ) -> None:
        super().__init__(network, steps)
        if matrices not in get_args(Matrices):
            raise UsageError(f"matrices: {matrices!r} is none of {', '.join(get_args(Matrices))}")
        self.rate = rate
        self.curvatures = nn.ModuleList(Curvature(entry.shape, matrices) for entry in self.layout.entries)

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        parts = gradient.split_with_sizes(self.layout.sizes, dim=1)
        transformed = [curvature(part) for curvature, part in zip(self.curvatures, parts, strict=True)]
        return torch.add(points[-1], torch.cat(transformed, 1), alpha=-self.rate)


METHOD = Method(
    "meta-curvature",
    "learns matrices that every gradient is multiplied with",
    "Park and Oliva, NeurIPS 2019, arXiv:1902.03356",
    2019,
    MetaCurvature,
)
