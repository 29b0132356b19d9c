"""Meta-SGD (Li, Zhou, Chen and Li, 2017, arXiv:1707.09835).

    θⱼ₊₁ = θⱼ − Q ∘ ∇L(θⱼ)                              Q `[D]`, learned with θ₀

Gradient descent with one learned step size per parameter, so that the direction of the step is learned too. Q
is the step size itself, as in its paper; PAMELA's Q is a multiplier of a constant rate.

Departures from the authors' code:

- We found no code by the authors; the paper is followed.
- Every entry of Q is initialised to `rate`. In the paper the initial values are random.
- More than one step is possible; every step then uses the same Q ("Q₀, multiple steps" in PAMELA's paper).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from pathaware.core.parameters import Layout
from pathaware.core.rule import Coefficient, LinearSteps, Rule
from pathaware.core.settings import at_least
from pathaware.methods.method import Method


class MetaSGD(Rule):
    """Gradient descent with one learned step size per parameter, `q [D]`, initialised to `rate`."""

    def __init__(self, network: nn.Module | Layout, steps: int = 1, *, rate: float = 0.01) -> None:
        super().__init__(network, steps)
        at_least(0, rate=rate)
        self.q = nn.Parameter(torch.full((len(self.layout),), float(rate)))

    def coefficients(self) -> Mapping[str, Coefficient]:
        return {"q": Coefficient(step_size=1.0)}

    def linear_steps(self) -> LinearSteps:
        return LinearSteps(self.steps, self.q[None])

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        return torch.addcmul(points[-1], self.q, gradient, value=-1)


METHOD = Method(
    "meta-sgd",
    "learns an initialisation and a step size per parameter",
    "Li, Zhou, Chen and Li, 2017, arXiv:1707.09835",
    2017,
    MetaSGD,
)
