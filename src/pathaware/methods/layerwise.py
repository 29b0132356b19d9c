"""A number for each layer of a network: taken from points of a path, and laid out over them again.

A layer is here, as in the code of those who look at networks this way, one tensor of parameters: a weight and
its bias are two.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pathaware.core.parameters import Layout


def layer_means(layout: Layout, values: Tensor) -> Tensor:
    """The mean over every layer of points or slopes `[T, D]`: `[T, layers]`."""
    return torch.stack([part.mean(1) for part in values.split_with_sizes(layout.sizes, dim=1)], dim=1)


def over_layers(layout: Layout, numbers: Tensor) -> Tensor:
    """Every layer's own number `[T, layers]`, for each of its parameters: `[T, D]`."""
    parts = [column.expand(-1, size) for column, size in zip(numbers.split(1, 1), layout.sizes, strict=True)]
    return torch.cat(parts, dim=1)


def perceptron(inputs: int, outputs: int, *, first: float | None = None) -> nn.Sequential:
    """Two linear layers, as many hidden units as inputs. Untrained it answers `first`, where given."""
    last = nn.Linear(inputs, outputs)
    if first is not None:
        nn.init.zeros_(last.weight)
        nn.init.constant_(last.bias, first)
    return nn.Sequential(nn.Linear(inputs, inputs), nn.ReLU(), last)
