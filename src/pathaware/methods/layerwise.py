"""Per-layer helpers for ALFA, L2F, MeTAL, GAP and Meta-Curvature.

Following their authors, a *layer* is one parameter tensor: a weight and its bias are two layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pathaware.core.parameters import NORMS, Layout


def without_norms(network: nn.Module | Layout, adapt_norms: bool = False) -> Layout:
    """A layout of all parameters but the gains and shifts of norm layers, or, with `adapt_norms`, of all."""
    if isinstance(network, Layout):
        return network
    norms = {
        f"{name}.{parameter}"
        for name, module in network.named_modules()
        if isinstance(module, NORMS)
        for parameter, _ in module.named_parameters(recurse=False)
    }
    return Layout.of(network, adapted=lambda name: adapt_norms or name not in norms)


def layer_means(layout: Layout, values: Tensor) -> Tensor:
    """The mean over each layer of points or gradients `[T, D]`: `[T, layers]`."""
    return torch.stack([part.mean(1) for part in values.split_with_sizes(layout.sizes, dim=1)], dim=1)


def over_layers(layout: Layout, numbers: Tensor) -> Tensor:
    """Repeat one number per layer, `[T, layers]`, for each of the layer's parameters: `[T, D]`."""
    parts = [column.expand(-1, size) for column, size in zip(numbers.split(1, 1), layout.sizes, strict=True)]
    return torch.cat(parts, dim=1)


def map_layers(layout: Layout, modules: nn.ModuleList, values: Tensor) -> Tensor:
    """Apply one module per layer to its part `[T, numel]` of `values [T, D]`: `[T, D]`."""
    parts = values.split_with_sizes(layout.sizes, dim=1)
    return torch.cat([module(part) for module, part in zip(modules, parts, strict=True)], dim=1)


def perceptron(inputs: int, outputs: int, *, output: float | None = None) -> nn.Sequential:
    """Two linear layers with as many hidden units as inputs; `output`: what it returns before training."""
    last = nn.Linear(inputs, outputs)
    if output is not None:
        nn.init.zeros_(last.weight)
        nn.init.constant_(last.bias, output)
    return nn.Sequential(nn.Linear(inputs, inputs), nn.ReLU(), last)
