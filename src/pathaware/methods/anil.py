"""ANIL, almost no inner loop (Raghu, Raghu, Bengio and Vinyals, ICLR 2020, arXiv:1909.09157).

    wⱼ₊₁ = wⱼ − α ∇_w L(wⱼ, φ)          w: the last linear layer, `[T, D]`; φ: all the rest, shared

MAML whose inner loop changes the head alone. The body φ is learned through every inner gradient.
"""

from __future__ import annotations

from torch import nn

from pathaware.core.head import last_linear
from pathaware.core.parameters import Layout
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method


class Anil(GradientDescent):
    """Gradient descent of the last linear layer."""

    def __init__(self, network: nn.Module, steps: int = 5, *, rate: float = 0.01) -> None:
        head, _ = last_linear(network)
        layout = Layout.of(network, adapted=lambda name: name.startswith(f"{head}."))
        super().__init__(layout, steps, rate=rate)


METHOD = Method(
    "anil",
    "MAML that adapts the last layer only",
    "Raghu, Raghu, Bengio and Vinyals, ICLR 2020, arXiv:1909.09157",
    2020,
    Anil,
)
