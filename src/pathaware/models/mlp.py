"""The multi-layer perceptron of the regression experiments."""

from __future__ import annotations

from torch import nn


def mlp(inputs: int = 1, hidden: tuple[int, ...] = (40, 40), outputs: int = 1) -> nn.Sequential:
    """A ReLU network `inputs → hidden… → outputs`; by default the paper's 1-40-40-1."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))
