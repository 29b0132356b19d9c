"""Meta-Curvature (Park and Oliva, NeurIPS 2019, arXiv:1902.03356).

    θⱼ₊₁ = θⱼ − α MC(∇L(θⱼ))
    MC(G) = G ×₁ M_o ×₂ M_i ×₃ M_f                   weights   G `[T, out, in, k]`, k taps; linear: no ×₃ M_f
    MC(g) = m ∘ g                                    vectors   g `[T, n]`: biases, norm gains and shifts

As one matrix, vec MC(G) = (M_o ⊗ M_i ⊗ M_f) vec G. M_o `[out, out]`, M_i `[in, in]` and M_f `[k, k]` are
initialised to the identity and m `[n]` to one, which is MAML. They are learned with θ₀ and shared by all
steps. They need not be positive: a step may ascend the support loss where that generalises better.

Departures from the authors' code: none found. Vectors, which the paper does not mention, have one factor per
entry there, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pathaware.core.parameters import Layout
from pathaware.core.rule import Context, Memory
from pathaware.core.settings import one_of
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method

Matrices = Literal["full", "diagonal"]


class Curvature(nn.Module):
    """A matrix or a vector along every axis of one tensor."""

    def __init__(self, shape: Sequence[int], matrices: Matrices) -> None:
        super().__init__()
        self.square = matrices == "full" and len(shape) > 1
        self.axes = (*shape[:2], prod(shape[2:])) if len(shape) > 2 else tuple(shape) or (1,)
        self.factors = nn.ParameterList(torch.eye(n) if self.square else torch.ones(n) for n in self.axes)

    def diagonal(self) -> Tensor:
        """The Kronecker product of vectors: `[numel]`."""
        whole: Tensor = reduce(lambda a, b: torch.outer(a, b).flatten(), self.factors)
        return whole


class MetaCurvature(GradientDescent):
    """Gradient descent with the constant step size α in a learned geometry.

    `matrices`: `full`, the method; `diagonal`, whose step sizes are products of one factor per output, one
    per input and one per tap, which stays small for wide layers.
    """

    def __init__(
        self, network: nn.Module | Layout, steps: int = 5, *, rate: float = 0.01, matrices: Matrices = "full"
    ) -> None:
        super().__init__(network, steps, rate=rate)
        one_of(Matrices, matrices=matrices)
        self.curvatures = nn.ModuleList(Curvature(entry.shape, matrices) for entry in self.layout.entries)
        self.vectors: list[int] = []
        """Tensors that are multiplied element by element."""
        self.alike: dict[tuple[int, ...], list[int]] = {}
        """Tensors of the same axes, which are multiplied together."""
        for i, curvature in enumerate(self.curvatures):
            assert isinstance(curvature, Curvature)
            same = self.alike.setdefault(curvature.axes, []) if curvature.square else self.vectors
            same.append(i)

    def begin(self, start: Tensor, context: Context) -> tuple[Tensor, Memory]:
        return start, self.factors()

    def advance(
        self, j: int, points: Sequence[Tensor], gradient: Tensor, losses: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return super().step(j, points, self.multiplied(gradient, *memory)), memory

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        return super().step(j, points, self.multiplied(gradient, *self.factors()))

    def factors(self) -> tuple[Tensor | None, tuple[tuple[Tensor, ...], ...]]:
        """m of all vectors, `[V]`, and for all tensors that are alike M_o, M_i and M_f, `[L, n, n]`."""
        curvatures: list[Any] = list(self.curvatures)
        m = torch.cat([curvatures[i].diagonal() for i in self.vectors]) if self.vectors else None
        alike = ([curvatures[i].factors for i in same] for same in self.alike.values())
        return m, tuple(tuple(torch.stack(axis) for axis in zip(*each, strict=True)) for each in alike)

    def multiplied(
        self, gradient: Tensor, m: Tensor | None, matrices: tuple[tuple[Tensor, ...], ...]
    ) -> Tensor:
        """MC of gradients `[T, D]`."""
        parts = list(gradient.split_with_sizes(self.layout.sizes, dim=1))
        if m is not None:
            product = torch.cat([parts[i] for i in self.vectors], dim=1) * m
            sizes = [self.layout.sizes[i] for i in self.vectors]
            for i, part in zip(self.vectors, product.split_with_sizes(sizes, dim=1), strict=True):
                parts[i] = part
        for (axes, same), (of_output, of_input, *of_taps) in zip(self.alike.items(), matrices, strict=True):
            # outputs before tasks, so that the products of all tasks are one
            g = torch.stack([parts[i].unflatten(1, axes).transpose(0, 1) for i in same])
            for of_tap in of_taps:
                g = _along_last(g, of_tap)
            g = torch.bmm(of_output, g.flatten(2)).view(g.shape)
            g = _along_last(g.movedim(3, -1), of_input).movedim(-1, 3)
            for i, part in zip(same, g.transpose(1, 2).flatten(2).unbind(), strict=True):
                parts[i] = part
        return torch.cat(parts, dim=1)


def _along_last(values: Tensor, matrices: Tensor) -> Tensor:
    """Multiply `[L, …, n]` along its last axis with `[L, n, n]`."""
    return torch.bmm(values.flatten(1, -2), matrices.mT).view(values.shape)


METHOD = Method(
    "meta-curvature",
    "learns matrices that multiply every gradient",
    "Park and Oliva, NeurIPS 2019, arXiv:1902.03356",
    2019,
    MetaCurvature,
)
