"""Insert layers into a network, for methods that do so."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from torch import nn

from pathaware.core.errors import UsageError

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

LAYERS = (*_CONVOLUTIONS, nn.Linear)
"""The kinds of layers that `identity_after` can follow."""


def identity_after(layer: nn.Module, *, kernel: int = 1, bias: bool = False) -> nn.Module:
    """A square layer to follow `layer`, a convolution or linear layer, initialised to the identity."""
    if isinstance(layer, nn.Linear):
        linear = nn.Linear(layer.out_features, layer.out_features, bias=bias)
        nn.init.eye_(linear.weight)
        return _zero_bias(linear)
    if not isinstance(layer, _CONVOLUTIONS):
        raise UsageError(f"model: no square layer can follow {type(layer).__name__}")
    kind = next(kind for kind in _CONVOLUTIONS if isinstance(layer, kind))
    convolution = kind(layer.out_channels, layer.out_channels, kernel, padding=kernel // 2, bias=bias)
    nn.init.dirac_(convolution.weight)
    return _zero_bias(convolution)


def _zero_bias(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear) -> nn.Module:
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def insert(model: nn.Module, prefix: str, after: Mapping[str, nn.Module]) -> nn.Sequential:
    """Insert a layer after each child named in `after`; the new layers are called `prefix`1, 2, ….

    Existing layers keep their names, so checkpoints and layouts stay valid.
    """
    if not isinstance(model, nn.Sequential):
        raise UsageError(
            f"model: layers can be inserted only into an nn.Sequential, not {type(model).__name__}"
        )
    children: OrderedDict[str, nn.Module] = OrderedDict()
    added = 0
    for name, child in model.named_children():
        children[name] = child
        if name in after:
            added += 1
            children[f"{prefix}{added}"] = after[name]
    if len(children) != len(model) + added:
        raise UsageError(f"model: it already has a layer called {prefix} and a number; rename that layer")
    return nn.Sequential(children)


def inserted(prefix: str, name: str) -> bool:
    """True if a module or parameter of this name belongs to a layer that `insert` added."""
    first = name.partition(".")[0]
    return first.startswith(prefix) and first.removeprefix(prefix).isdigit()
