"""Differentiate through the path (Finn, Abbeel and Levine, ICML 2017, arXiv:1703.03400).

    second order:  ∇_{θ₀,Φ} L_query(θₙ), exactly
    first order:   the same with every inner gradient ∇L(θⱼ) held constant (FOMAML)

Under first order the coefficients Φ still learn: θⱼ − Q ∘ g is differentiable in Q for a constant g.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from pathaware.few_shot import FewShotLearner
from pathaware.outer.base import Outer
from pathaware.tasks.episodes import Episodes


class Unrolled(Outer):
    """The meta-gradient of the query loss through the unrolled inner loop."""

    def __init__(self, order: Literal["second", "first"] = "second") -> None:
        self.order = order

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        losses = learner.task_losses(episodes, order=self.order)
        (losses.sum() * weight).backward()
        return losses.detach()
