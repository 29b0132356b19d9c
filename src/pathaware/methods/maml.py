"""MAML's inner loop (Finn, Abbeel and Levine, ICML 2017, arXiv:1703.03400).

θⱼ₊₁ = θⱼ − α ∇L(θⱼ)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pathaware.core.parameters import Layout
from pathaware.core.rule import Rule
from pathaware.methods.method import Method


class GradientDescent(Rule):
    """Plain gradient descent with one constant rate α; nothing is learned but the start."""

    def __init__(self, network: nn.Module | Layout, steps: int = 5, *, rate: float = 0.01) -> None:
        super().__init__(network, steps)
        self.rate = rate

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        return torch.add(points[-1], gradient, alpha=-self.rate)  # `sub` takes a pass more to differentiate


METHOD = Method(
    "maml",
    "learns an initialisation for gradient descent",
    "Finn, Abbeel and Levine, ICML 2017, arXiv:1703.03400",
    2017,
    GradientDescent,
)
