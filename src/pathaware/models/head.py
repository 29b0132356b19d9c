"""The layer that gives the answer."""

from __future__ import annotations

from torch import nn

from pathaware.errors import UsageError


def last_linear(model: nn.Module) -> tuple[str, nn.Linear]:
    """The name and module of the last fully-connected layer, which is where classes are told apart."""
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not found or not found[-1][0]:
        raise UsageError("model: it must end in a layer nn.Linear of its own for this")
    return found[-1]
