"""Meta-SGD (Li, Zhou, Chen and Li, 2017, arXiv:1707.09835).

    θⱼ₊₁ = θⱼ − Q ∘ ∇L(θⱼ)

Q has the shape of θ and is learned with it. The original takes one step; with more, every step reads
the same Q (the paper's "Q₀, multiple steps").
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pathaware.core.parameters import Layout
from pathaware.core.rule import Rule
from pathaware.methods.method import Method


class MetaSGD(Rule):
    """One learned rate for every parameter, `q [D]`, starting at `rate`."""

    step_sizes = ("q",)

    def __init__(self, network: nn.Module | Layout, steps: int = 1, *, rate: float = 0.01) -> None:
        super().__init__(network, steps)
        self.q = nn.Parameter(torch.full((len(self.layout),), rate))

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        return torch.addcmul(points[-1], self.q, gradient, value=-1)


METHOD = Method(
    "meta-sgd",
    "also learns a step size for every parameter",
    "Li, Zhou, Chen and Li, 2017, arXiv:1707.09835",
    2017,
    MetaSGD,
)
