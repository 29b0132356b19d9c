"""MAML (Finn, Abbeel and Levine, ICML 2017, arXiv:1703.03400).

    θⱼ₊₁ = θⱼ − α ∇L(θⱼ)                                inner loop, θⱼ `[T, D]`
    minimise L_query(θₙ) over θ₀                        exactly, through the inner loop

An initialisation θ₀ is learned from which a few steps of gradient descent solve a new task.

Departures from the authors' code:

- Gains and shifts of batch norm adapt like all other parameters. Theirs has shifts only, which all tasks
  share.
- As many steps are taken in evaluation as in training; theirs takes ten in evaluation.
- On miniImageNet their network has 32 filters; here, as in PAMELA's paper, it has 64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pathaware.core.parameters import Layout
from pathaware.core.rule import LinearSteps, Rule
from pathaware.core.settings import at_least
from pathaware.methods.method import Method


class GradientDescent(Rule):
    """Gradient descent with one constant step size α, `rate`; only the initialisation is learned.

    >>> from pathaware import MetaLearner
    >>> model = nn.Linear(1, 1)
    >>> maml = MetaLearner(model, GradientDescent(model, steps=5, rate=0.1), nn.functional.mse_loss)
    >>> [name for name, _ in maml.named_parameters()]
    ['model.weight', 'model.bias']
    """

    def __init__(self, network: nn.Module | Layout, steps: int = 5, *, rate: float = 0.01) -> None:
        super().__init__(network, steps)
        at_least(0, rate=rate)
        self.rate = rate

    def linear_steps(self) -> LinearSteps | None:
        return LinearSteps(self.steps, self.rate)

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        # the backward pass of `sub` has one operation more
        return torch.add(points[-1], gradient, alpha=-self.rate)


METHOD = Method(
    "maml",
    "learns an initialisation for gradient descent",
    "Finn, Abbeel and Levine, ICML 2017, arXiv:1703.03400",
    2017,
    GradientDescent,
)
