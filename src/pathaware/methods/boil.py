"""BOIL, body only update in the inner loop (Oh, Yoo, Kim and Yun, ICLR 2021, arXiv:2008.08882).

    θⱼ₊₁ = θⱼ − α ∇_θ L(θⱼ, w)          θ: all but the last linear layer, `[T, D]`; w: that layer, shared

MAML whose inner loop leaves the head alone, the opposite of ANIL: features must move to where the head, the
same for all tasks, expects their class. The head is learned through every inner gradient. The authors take
one large step, α = 0.5.
"""

from __future__ import annotations

from torch import nn

from pathaware.core.head import last_linear
from pathaware.core.parameters import Layout
from pathaware.core.settings import at_least
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method


class Boil(GradientDescent):
    """Gradient descent of everything ahead of the last linear layer."""

    def __init__(self, network: nn.Module, steps: int = 5, *, rate: float = 0.1) -> None:
        at_least(0, rate=rate)
        head, _ = last_linear(network)
        layout = Layout.of(network, adapted=lambda name: not name.startswith(f"{head}."))
        super().__init__(layout, steps, rate=rate)


METHOD = Method(
    "boil",
    "MAML that adapts all but the last layer",
    "Oh, Yoo, Kim and Yun, ICLR 2021, arXiv:2008.08882",
    2021,
    Boil,
)
