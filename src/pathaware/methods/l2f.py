"""L2F, learning to forget (Baik, Hong and Lee, CVPR 2020, arXiv:1906.05895).

    γ = g_φ(layer-wise means of ∇L(θ))            attenuation, `[T, layers]`, each in (0, 1)
    θ₀ = γ ∘ θ                                    the task's initialisation, `[T, D]`
    θⱼ₊₁ = θⱼ − α ∇L(θⱼ)

An initialisation that all tasks share is a compromise. A small network g_φ computes from a task's first
gradient how much of each layer to keep. Gains and shifts of norm layers are neither attenuated nor adapted;
they are learned and shared by all tasks, as in the authors' code. `adapt_norms` treats them like the
others.

Departures from the authors' code:

- The meta-gradient also passes through the first gradient, the input of g_φ. Their L2F code holds it
  constant; their later code, for ALFA with L2F, differentiates it.
- They train the first ten of 60 epochs with first-order derivatives; here all derivatives are exact.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pathaware.core.parameters import Layout
from pathaware.core.rule import Context, Memory
from pathaware.methods.layerwise import Layers, perceptron, without_norms
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method, once


class Forgetting(GradientDescent):
    """Gradient descent from an initialisation that is attenuated per task and layer."""

    def __init__(
        self, network: nn.Module | Layout, steps: int = 5, *, rate: float = 0.01, adapt_norms: bool = False
    ) -> None:
        super().__init__(without_norms(network, adapt_norms), steps, rate=rate)
        self.layers, layers = Layers(self.layout.sizes), len(self.layout.entries)
        self.attenuator = perceptron(layers, layers)

    def begin(self, start: Tensor, context: Context) -> tuple[Tensor, Memory]:
        _, gradient = context.gradient(start)
        return self.layers.spread(self.attenuation(gradient)) * start, None

    def attenuation(self, gradient: Tensor) -> Tensor:
        """γ, `[T, layers]`, from the gradient `[T, D]` at the shared initialisation."""
        return torch.sigmoid(self.attenuator(self.layers.means(gradient)))


METHOD = Method(
    "l2f",
    "MAML that attenuates its initialisation per task and layer",
    "Baik, Hong and Lee, CVPR 2020, arXiv:1906.05895",
    2020,
    Forgetting,
    version=2,
    earlier=once(adapt_norms=True),
)
