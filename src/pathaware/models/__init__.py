"""Networks, by the names that configurations use. Models import core only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from pathaware.core.errors import UsageError, did_you_mean
from pathaware.core.settings import load_plugin
from pathaware.models.conv4 import conv4
from pathaware.models.mlp import mlp
from pathaware.models.resnet12 import resnet12

__all__ = ["MODELS", "build_model", "conv4", "mlp", "resnet12"]

MODELS: dict[str, Callable[..., nn.Module]] = {"conv4": conv4, "resnet12": resnet12}


def build_model(name: str, ways: int, size: int, channels: int, width: int = 0) -> nn.Module:
    """Build `conv4`, `resnet12` or a custom `package.module:function`; `width` 0 means its default."""
    options: dict[str, Any] = {"ways": ways, "size": size, "channels": channels}
    if width:
        options["width"] = width
    build = MODELS[name] if name in MODELS else _load(name)
    try:
        model = build(**options)
    except UsageError:
        raise
    except Exception as error:  # of a custom function, anything
        called = f"cannot be called with {', '.join(options)}"
        raise UsageError(f"model: {name} {called} ({type(error).__name__}: {error})") from error
    if not isinstance(model, nn.Module):
        raise UsageError(f"model: {name} returned {type(model).__name__}, not an nn.Module")
    return model


def _load(name: str) -> Callable[..., nn.Module]:
    if ":" not in name:
        hint = did_you_mean(name, MODELS)
        raise UsageError(
            f"model: {name!r} must be one of {', '.join(MODELS)}, or package.module:function{hint}"
        )
    build: Callable[..., nn.Module] = load_plugin("model", name)
    return build
