"""ALFA, adaptive hyper-parameters (Baik, Choi, Choi, Kim and Lee, NeurIPS 2020, arXiv:2011.00209).

    τⱼ = [layer-wise means of θⱼ, of ∇L(θⱼ)]                       `[T, 2 · layers]`
    (aⱼ, bⱼ) = g_φ(τⱼ)                                             `[T, layers]` each
    θⱼ₊₁ = βⱼ ∘ θⱼ − αⱼ ∘ ∇L(θⱼ),   αⱼ = α⁰ⱼ ∘ aⱼ,   βⱼ = 1 − λ⁰ⱼ ∘ bⱼ

A small network g_φ generates a step size αⱼ and a weight decay for every layer, step and task from the task's
current parameters and gradient. α⁰ and λ⁰ are learned per layer and step and shared by all tasks. Gains and
shifts of norm layers do not adapt, as in the authors' code; with `adapt_norms` they do.

Departures from the authors' code:

- The generator's initial output is one, so that training starts as MAML. Theirs is small and random, so that
  about half of the layers ascend at first.
- With random initialisation of the network instead of a learned one, their code learns a decay per
  parameter. That variant is not implemented.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from pathaware.core.parameters import GroupBroadcast, Layout
from pathaware.core.rule import Coefficient, Rule
from pathaware.core.settings import at_least
from pathaware.methods.layerwise import Layers, perceptron, without_norms
from pathaware.methods.method import Method, once


class Alfa(Rule):
    """Gradient descent with step sizes and weight decays generated at every point.

    `rates` α⁰ and `decays` λ⁰ are `[steps, layers]`, initialised to `rate` and `rate` times `decay`.
    """

    def __init__(
        self,
        network: nn.Module | Layout,
        steps: int = 5,
        *,
        rate: float = 0.01,
        decay: float = 0.0005,
        adapt_norms: bool = False,
    ) -> None:
        super().__init__(without_norms(network, adapt_norms), steps)
        at_least(0, rate=rate, decay=decay)
        self.layers, layers = Layers(self.layout.sizes), len(self.layout.entries)
        self.groups = GroupBroadcast(self.layout, "tensor")
        self.rates = nn.Parameter(torch.full((steps, layers), float(rate)))
        self.decays = nn.Parameter(torch.full((steps, layers), rate * decay))
        self.generator = perceptron(2 * layers, 2 * layers, output=1.0)

    def coefficients(self) -> Mapping[str, Coefficient]:
        return {"rates": Coefficient(self.groups, range(self.steps), 1.0)}

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        alpha, beta = self.hyperparameters(j, points[-1], gradient)
        decayed = self.layers.spread(beta) * points[-1]
        return torch.addcmul(decayed, self.layers.spread(alpha), gradient, value=-1)

    def hyperparameters(self, j: int, point: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """αⱼ and βⱼ, `[T, layers]` each, from a point and its gradient `[T, D]`."""
        j = min(j, self.steps - 1)
        state = torch.cat([self.layers.means(point), self.layers.means(gradient)], dim=1)
        a, b = self.generator(state).chunk(2, dim=1)
        return self.rates[j] * a, 1 - self.decays[j] * b


METHOD = Method(
    "alfa",
    "generates step sizes and weight decays from parameters and gradients",
    "Baik, Choi, Choi, Kim and Lee, NeurIPS 2020, arXiv:2011.00209",
    2020,
    Alfa,
    version=2,
    earlier=once(adapt_norms=True),
)
