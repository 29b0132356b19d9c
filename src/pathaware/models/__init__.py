"""Networks, by the names that configurations use. Models import core only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from pathaware.core.errors import UsageError, did_you_mean
from pathaware.core.settings import load_plugin, short_repr
from pathaware.models.conv4 import conv4
from pathaware.models.mlp import mlp
from pathaware.models.resnet12 import resnet12

__all__ = ["MODELS", "build_model", "conv4", "mlp", "resnet12"]

MODELS: dict[str, Callable[..., nn.Module]] = {"conv4": conv4, "resnet12": resnet12}


def build_model(
    name: str, ways: int, size: int, channels: int, width: int = 0, widths: str = "", dropout: float = 0.0
) -> nn.Module:
    """Build `conv4`, `resnet12` or a custom `package.module:function`.

    `width`, `widths` (numbers with commas, one per block) and `dropout` are passed on unless they are 0 or
    empty. `resnet12` takes all three, `conv4` only `width`.
    """
    options: dict[str, Any] = {"ways": ways, "size": size, "channels": channels}
    if width:
        options["width"] = width
    if widths:
        options["widths"] = parse_widths(widths)
    if dropout:
        options["dropout"] = dropout
    refused = {"widths", "dropout"} & set(options)
    if name == "conv4" and refused:
        raise UsageError(f"{min(refused)}: conv4 has no such setting; resnet12 has")
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


def parse_widths(text: str) -> tuple[int, ...]:
    """`"64,128,256,512"` → `(64, 128, 256, 512)`."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and 0 < int(part) < 2**20 for part in parts):
        raise UsageError(f"widths: {short_repr(text)} is not allowed; whole numbers with commas between them")
    return tuple(map(int, parts))


def _load(name: str) -> Callable[..., nn.Module]:
    if ":" not in name:
        hint = did_you_mean(name, MODELS)
        raise UsageError(
            f"model: {name!r} must be one of {', '.join(MODELS)}, or package.module:function{hint}"
        )
    build: Callable[..., nn.Module] = load_plugin("model", name)
    return build
