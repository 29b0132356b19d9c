"""ANIL, almost no inner loop (Raghu, Raghu, Bengio and Vinyals, ICLR 2020, arXiv:1909.09157).

    wⱼ₊₁ = wⱼ − α ∇_w L(wⱼ, φ)          w: the last linear layer, `[T, D]`; φ: all other layers, shared

MAML whose inner loop adapts the head alone. The body φ is learned through every inner gradient.

Departures from the authors' code: we found no code of theirs to compare with; the defaults are those of
MAML.
"""

from __future__ import annotations

from torch import nn

from pathaware.core.last_layer import last_linear
from pathaware.core.parameters import Layout
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method


class Anil(GradientDescent):
    """Gradient descent of the last linear layer."""

    def __init__(self, network: nn.Module, steps: int = 5, *, rate: float = 0.01) -> None:
        super().__init__(head_or_body(network, head=True), steps, rate=rate)


def head_or_body(network: nn.Module, *, head: bool) -> Layout:
    """A layout that adapts the last linear layer (`head`), or all layers but that one."""
    prefix = f"{last_linear(network)[0]}."
    return Layout.of(network, adapted=lambda name: name.startswith(prefix) == head)


METHOD = Method(
    "anil",
    "MAML that adapts the last layer only",
    "Raghu, Raghu, Bengio and Vinyals, ICLR 2020, arXiv:1909.09157",
    2020,
    Anil,
)
