"""BOIL, body only update in the inner loop (Oh, Yoo, Kim and Yun, ICLR 2021, arXiv:2008.08882).

    θⱼ₊₁ = θⱼ − α ∇_θ L(θⱼ, w)          θ: all but the last linear layer, `[T, D]`; w: that layer, shared

MAML whose inner loop adapts all layers but the head, the opposite of ANIL: features must move to where the
head, which all tasks share, expects their class. The head is learned through every inner gradient.

Departures from the authors' code: the defaults are five steps of α = 0.1; theirs is one step of α = 0.5.
"""

from __future__ import annotations

from torch import nn

from pathaware.core.settings import at_least
from pathaware.methods.anil import head_or_body
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method


class Boil(GradientDescent):
    """Gradient descent of all layers before the last linear layer."""

    def __init__(self, network: nn.Module, steps: int = 5, *, rate: float = 0.1) -> None:
        at_least(0, rate=rate)
        super().__init__(head_or_body(network, head=False), steps, rate=rate)


METHOD = Method(
    "boil",
    "MAML that adapts all but the last layer",
    "Oh, Yoo, Kim and Yun, ICLR 2021, arXiv:2008.08882",
    2021,
    Boil,
)
