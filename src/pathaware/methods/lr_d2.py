"""LR-D2 (Bertinetto, Henriques, Torr and Vedaldi, ICLR 2019, arXiv:1805.08136).

    μᵢ = σ(ηᵢ),   sᵢ = μᵢ(1 − μᵢ),   zᵢ = ηᵢ + (yᵢ − μᵢ) / sᵢ          η = X w, initially zero
    w ← Xᵀ (X Xᵀ + λ diag(s)⁻¹)⁻¹ z                                   a Newton step, `steps` times

Logistic regression of labels y on features X, by iteratively reweighted least squares in the dual. It
separates two classes; with more, each is separated from all others by its own w, as in the authors' code:
W `[T, F, ways]`. Scaling, λ, α and β are those of R2-D2.

A step is computed in an equivalent form that does not divide by sᵢ, which vanishes where the fit is certain.
With t = 2y − 1 and D = diag(s)^½,

    w = Xᵀ D (D X Xᵀ D + λI)⁻¹ (D η + t exp(−t η / 2))

Departures from the authors' code: those of R2-D2; λ is initialised to 1 instead of 50, for features that
are divided by √F; there are five Newton steps, a number that their code leaves to its command line.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pathaware.core.head import solve
from pathaware.core.rule import Allowed
from pathaware.core.settings import at_least
from pathaware.methods.method import Method
from pathaware.methods.r2d2 import PAPER, R2D2


class LRD2(R2D2):
    """One linear layer per task, fitted by a few Newton steps of logistic regression.

    `steps` is their number, `penalty` the initial λ, `scale` multiplies the fitted weights.
    """

    allows: frozenset[Allowed] = frozenset({"more classes", "weights"})

    def __init__(self, network: nn.Module, steps: int = 5, penalty: float = 1.0, scale: float = 10.0) -> None:
        super().__init__(network, penalty, scale)
        at_least(1, steps=steps)
        self.steps = steps

    def dual(self, gram: Tensor, y: Tensor, root: Tensor | None = None) -> Tensor:
        """One linear system per class: weights `[T, ways, S]` differ, X Xᵀ `[T, S, S]` is shared."""
        unit = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        gram, ridge = gram.unsqueeze(1), self.log_penalty.exp() * unit
        sign = 2 * y.mT - 1
        eta = torch.zeros_like(sign)
        given = torch.ones_like(sign[:, :1]) if root is None else root.mT  # [T, 1, S]
        for _ in range(self.steps):
            s = (eta.sigmoid() * (-eta).sigmoid()).sqrt()
            reweighting = given * s
            reweighted = reweighting.unsqueeze(-1) * gram * reweighting.unsqueeze(-2) + ridge
            target = given * (s * eta + sign * (-sign * eta / 2).exp())
            dual = reweighting * solve(reweighted, target.unsqueeze(-1)).squeeze(-1)
            eta = (gram @ dual.unsqueeze(-1)).squeeze(-1)
        return dual.mT


METHOD = Method(
    "lr-d2",
    "fits the last layer by logistic regression",
    PAPER,
    2019,
    LRD2,
    order="none",
)
