"""Layers that methods insert between those of a network."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from torch import nn

from pathaware.core.errors import UsageError

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

LAYERS = (*_CONVOLUTIONS, nn.Linear)
"""What has outputs of its own that another layer can follow."""


def identity_after(layer: nn.Module, *, kernel: int = 1, bias: bool = False) -> nn.Module:
    """A square layer for the outputs of `layer`, a convolution or linear: it starts by changing nothing."""
    if isinstance(layer, nn.Linear):
        linear = nn.Linear(layer.out_features, layer.out_features, bias=bias)
        nn.init.eye_(linear.weight)
        return _without_shift(linear)
    if not isinstance(layer, _CONVOLUTIONS):
        raise UsageError(f"model: nothing square can follow {type(layer).__name__}")
    kind = next(kind for kind in _CONVOLUTIONS if isinstance(layer, kind))
    convolution = kind(layer.out_channels, layer.out_channels, kernel, padding=kernel // 2, bias=bias)
    nn.init.dirac_(convolution.weight)
    return _without_shift(convolution)


def _without_shift(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear) -> nn.Module:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def insert(model: nn.Module, prefix: str, after: Mapping[str, nn.Module]) -> nn.Sequential:
    """The network with a new layer behind each child named in `after`; those are called `prefix`1, 2, ….

    Layers that were there keep their names, so what a checkpoint or a layout calls them stays true.
    """
    if not isinstance(model, nn.Sequential):
        raise UsageError(f"model: layers can be put into an nn.Sequential only, not {type(model).__name__}")
    children: OrderedDict[str, nn.Module] = OrderedDict()
    added = 0
    for name, child in model.named_children():
        children[name] = child
        if name in after:
            added += 1
            children[f"{prefix}{added}"] = after[name]
    if len(children) != len(model) + added:
        raise UsageError(f"model: it has a layer called {prefix} and a number already; rename that")
    return nn.Sequential(children)


def inserted(prefix: str, name: str) -> bool:
    """Whether a module or parameter of this name belongs to a layer that `insert` has put there."""
    first = name.partition(".")[0]
    return first.startswith(prefix) and first.removeprefix(prefix).isdigit()
