"""ALFA, adaptive hyper-parameters (Baik, Choi, Choi, Kim and Lee, NeurIPS 2020, arXiv:2011.00209).

    τⱼ = [layer-wise means of θⱼ, of ∇L(θⱼ)]                       `[T, 2 · layers]`
    (aⱼ, bⱼ) = g_φ(τⱼ)                                             `[T, layers]` each
    θⱼ₊₁ = βⱼ ∘ θⱼ − αⱼ ∘ ∇L(θⱼ),   αⱼ = α⁰ⱼ ∘ aⱼ,   βⱼ = 1 − λ⁰ⱼ ∘ bⱼ

A rate αⱼ and a decay of the weights for every layer, step and task, which a small network g_φ makes of where
the task is. α⁰ and λ⁰ are learned for every layer and step, and all tasks share them.

The generator begins with answers of one, so that training begins with MAML; the authors' begins with small
random answers, half of which let the layer climb.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pathaware.core.parameters import Layout
from pathaware.core.rule import Rule
from pathaware.core.settings import at_least
from pathaware.methods.layerwise import layer_means, over_layers, perceptron
from pathaware.methods.method import Method


class Alfa(Rule):
    """Gradient descent whose rates and decays are made anew at every point.

    `rates` α⁰ and `decays` λ⁰ are `[steps, layers]` and begin at `rate` and `rate · decay`.
    """

    def __init__(
        self, network: nn.Module | Layout, steps: int = 5, *, rate: float = 0.01, decay: float = 0.0005
    ) -> None:
        super().__init__(network, steps)
        at_least(0, decay=decay)
        layers = len(self.layout.entries)
        self.rates = nn.Parameter(torch.full((steps, layers), rate))
        self.decays = nn.Parameter(torch.full((steps, layers), rate * decay))
        self.generator = perceptron(2 * layers, 2 * layers, first=1.0)

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        alpha, beta = self.hyperparameters(j, points[-1], gradient)
        kept = over_layers(self.layout, beta) * points[-1]
        return torch.addcmul(kept, over_layers(self.layout, alpha), gradient, value=-1)

    def hyperparameters(self, j: int, point: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """αⱼ and βⱼ, `[T, layers]` each, of tasks at a point `[T, D]` with this gradient."""
        row = min(j, self.steps - 1)
        state = torch.cat([layer_means(self.layout, point), layer_means(self.layout, gradient)], dim=1)
        a, b = self.generator(state).chunk(2, dim=1)
        return self.rates[row] * a, 1 - self.decays[row] * b


METHOD = Method(
    "alfa",
    "generates rates and weight decays from weights and gradients",
    "Baik, Choi, Choi, Kim and Lee, NeurIPS 2020, arXiv:2011.00209",
    2020,
    Alfa,
)
