"""GAP, geometry-adaptive preconditioning (Kang, Hwang, Eo, Kim and Rhee, CVPR 2023, arXiv:2304.01552).

    G = U Σ Vᵀ                          a weight's gradient at θⱼ, unfolded to `[T, out, rest]`
    θⱼ₊₁ = θⱼ − α U M Σ Vᵀ              M = diag(Sp(m₁), …, Sp(mₙ)), Sp(m) = ½ ln(1 + e²ᵐ), n = min(out, rest)
         = θⱼ − α P G                   P = U M Uᵀ, positive definite: the inverse of a Riemannian metric
         ≈ θⱼ − α M G                   approximate GAP

m `[n]` is learned for each weight and starts where M = I, which is MAML. Where a weight has more rows than
columns its transpose is meant, so that U is square and P has full rank: G V M Vᵀ and, approximately, G M.
Biases, norm gains and shifts are descended plainly.

U depends on θⱼ but is held constant in derivatives, as the authors do: its own derivative is divided by the
differences of singular values, many of which are zero when examples are few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.parameters import Entry, Layout
from pathaware.core.rule import Rule
from pathaware.methods.method import Method

_ONE = math.log(math.expm1(2)) / 2
"""Sp(_ONE) = 1"""


class Preconditioner(nn.Module):
    """M for one weight: multiplies its gradient `[T, numel]`."""

    def __init__(self, entry: Entry, exact: bool) -> None:
        super().__init__()
        rows = entry.shape[0]
        self.matrix = (rows, entry.numel // rows)
        self.exact = exact
        self.m = nn.Parameter(torch.full((min(self.matrix),), _ONE))

    def forward(self, gradient: Tensor) -> Tensor:
        rows, columns = self.matrix
        unfolded: Tensor = gradient.unflatten(1, self.matrix)
        wide = unfolded if rows <= columns else unfolded.mT
        scales = F.softplus(self.m, beta=2).unsqueeze(1)
        if self.exact:
            basis = singular_vectors(wide)
            wide = basis @ (scales * (basis.mT @ wide))
        else:
            wide = scales * wide
        return (wide if rows <= columns else wide.mT).flatten(1)


def singular_vectors(wide: Tensor) -> Tensor:
    """U `[T, n, n]` of matrices `[T, n, N]`, n ≤ N, those of the largest singular values first; constant."""
    if wide.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UsageError("exact: a CUDA graph cannot record singular vectors; set training.graph=false")
    vectors: Tensor = torch.linalg.svd(wide.detach(), full_matrices=False).U
    return vectors


class Gap(Rule):
    """Gradient descent with rate α along singular vectors that each have a learned, positive scale.

    `exact`: find the singular vectors. Otherwise the gradient's rows take their place: the same thing where
    rows are orthogonal, which the paper expects of long ones, and it costs nothing.
    """

    def __init__(
        self, network: nn.Module | Layout, steps: int = 5, *, rate: float = 0.01, exact: bool = False
    ) -> None:
        super().__init__(network, steps)
        self.rate = rate
        self.preconditioners = nn.ModuleList(
            Preconditioner(entry, exact) if len(entry.shape) > 1 else nn.Identity()
            for entry in self.layout.entries
        )

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        parts = gradient.split_with_sizes(self.layout.sizes, dim=1)
        scaled = [scale(part) for scale, part in zip(self.preconditioners, parts, strict=True)]
        return torch.add(points[-1], torch.cat(scaled, 1), alpha=-self.rate)


METHOD = Method(
    "gap",
    "learns how far to go along each singular vector of the gradient",
    "Kang, Hwang, Eo, Kim and Rhee, CVPR 2023, arXiv:2304.01552",
    2023,
    Gap,
)
