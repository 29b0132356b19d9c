"""GAP, geometry-adaptive preconditioning (Kang, Hwang, Eo, Kim and Rhee, CVPR 2023, arXiv:2304.01552).

    G = U Σ Vᵀ                          a weight's gradient at θⱼ, unfolded to `[T, out, rest]`
    θⱼ₊₁ = θⱼ − α U M Σ Vᵀ              M = diag(Sp(m₁), …, Sp(mₙ)), Sp(m) = ½ ln(1 + e²ᵐ), n = min(out, rest)
         = θⱼ − α P G                   P = U M Uᵀ, positive definite: the inverse of a Riemannian metric
         ≈ θⱼ − α M G                   approximate GAP

A positive scale per singular vector of the gradient is learned: m `[n]` for each weight, initialised so that
M = I, which is MAML. A weight with more rows than columns is transposed, so that U is square and P has full
rank: G V M Vᵀ and, approximately, G M. Biases and norm gains and shifts take plain gradient steps.

U depends on θⱼ but is held constant in derivatives, as in the authors' code: its derivative is divided by
differences of singular values, many of which are zero when there are few examples.

Departures from the authors' code:

- By default the approximate form is used (`exact` for the other), because singular vectors of every gradient
  cost more than the rest of training. Theirs is an option.
- The weights of linear layers are preconditioned, too. Their code preconditions convolutions only.
- As many steps are taken in evaluation as in training; theirs takes ten in evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.parameters import Entry, Layout
from pathaware.methods.layerwise import map_layers
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method

_ONE = math.log(math.expm1(2)) / 2
"""The m with Sp(m) = 1."""


class Preconditioner(nn.Module):
    """Multiplies the gradient `[T, numel]` of one weight by its P, or by M if not `exact`."""

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
    """U `[T, n, n]` of matrices `[T, n, N]`, n ≤ N, largest singular value first; without a gradient."""
    if wide.is_cuda and torch.cuda.is_current_stream_capturing():
        raise UsageError("exact: a CUDA graph cannot record singular vectors; set training.graph=false")
    finite = wide.detach().nan_to_num(0.0, 0.0, 0.0)  # one diverged task would raise for all
    vectors: Tensor = torch.linalg.svd(finite, full_matrices=False).U
    return vectors


class Gap(GradientDescent):
    """Gradient descent with step size α and a learned, positive scale per singular vector.

    `exact`: compute the singular vectors. Otherwise scale the gradient's rows, which costs nothing and is the
    same where rows are orthogonal, as the paper expects of long rows. With few examples G has low rank, and
    the columns of U outside its range are arbitrary: the step does not depend on them, but the meta-gradient
    does where their scales differ, and so it is not determined there.
    """

    def __init__(
        self, network: nn.Module | Layout, steps: int = 5, *, rate: float = 0.01, exact: bool = False
    ) -> None:
        super().__init__(network, steps, rate=rate)
        if exact:  # singular vectors are constants
            self.allows = self.allows - {"weights"}
        self.preconditioners = nn.ModuleList(
            Preconditioner(entry, exact) if len(entry.shape) > 1 else nn.Identity()
            for entry in self.layout.entries
        )

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        return super().step(j, points, map_layers(self.layout, self.preconditioners, gradient))


METHOD = Method(
    "gap",
    "learns a step size for each singular vector of the gradient",
    "Kang, Hwang, Eo, Kim and Rhee, CVPR 2023, arXiv:2304.01552",
    2023,
    Gap,
)
