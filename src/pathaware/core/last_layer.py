"""The last fully-connected layer of a network, which separates the classes."""

from __future__ import annotations

import copy

from torch import nn

from pathaware.core.errors import UsageError


def last_linear(model: nn.Module) -> tuple[str, nn.Linear]:
    """The name and module of the last fully-connected layer, which separates the classes."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not found or not found[-1][0]:
        raise UsageError("model: it must end in an nn.Linear layer for this")
    return found[-1]


def replace_last_linear(model: nn.Module, layer: nn.Module) -> nn.Module:
    """A copy of the network with `layer` in place of its last fully-connected layer."""
    copied = copy.deepcopy(model)
    name, _ = last_linear(copied)
    owner, _, attribute = name.rpartition(".")
    setattr(copied.get_submodule(owner), attribute, layer)
    return copied
