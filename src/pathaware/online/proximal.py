"""The φ-step of the paper's Algorithm 2.

φ ← φ − α₁ ∇_φ {L(φ) + λ/2 ‖φ − θ‖²} = φ − α₁ (∇L(φ) + λ (φ − θ))
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pathaware.layout import Layout
from pathaware.rules import Rule
from pathaware.settings import at_least


class ProximalDescent(Rule):
    """Gradient descent of a constant `rate` α₁ that a `pull` λ holds to the start of its path, θ."""

    def __init__(
        self, network: nn.Module | Layout, steps: int = 1, *, rate: float = 0.01, pull: float = 0.1
    ) -> None:
        super().__init__(network, steps)
        at_least(0, rate=rate, pull=pull)
        self.rate, self.pull = rate, pull

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        slope = torch.add(gradient, points[-1] - points[0], alpha=self.pull) if self.pull else gradient
        return torch.add(points[-1], slope, alpha=-self.rate)
