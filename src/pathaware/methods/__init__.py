"""The methods by name, one per file.

To add a method, write a file that defines `METHOD` and add its name to `_FILES`. Outside of this package, name
your own `Method` as `package.module:METHOD`.
"""

from __future__ import annotations

from importlib import import_module

from pathaware.core.errors import UsageError
from pathaware.core.plugins import load_plugin
from pathaware.methods.method import Method

_FILES = (
    "maml",
    "fomaml",
    "reptile",
    "meta_sgd",
    "pamela",
    "maml_plus_plus",
    "anil",
    "boil",
    "meta_curvature",
    "mt_net",
    "warp_grad",
    "imaml",
    "meta_lstm",
    "l_maml",
    "hsml",
    "l2f",
    "alfa",
    "metal",
    "gap",
    "r2d2",
    "lr_d2",
    "prototypical",
    "matching",
    "relation",
    "siamese",
    "mann",
)

_methods: list[Method] = [import_module(f"pathaware.methods.{file}").METHOD for file in _FILES]
METHODS: dict[str, Method] = {method.name: method for method in _methods}


def get_method(name: str) -> Method:
    """One of `METHODS`, or your own as `package.module:METHOD`."""
    if name in METHODS:
        return METHODS[name]
    if ":" not in name:
        raise UsageError(f"method: {name!r} must be one of {', '.join(METHODS)}, or package.module:METHOD")
    found = load_plugin("method", name)
    if not isinstance(found, Method):
        raise UsageError(f"method: {name} is {type(found).__name__}, not a pathaware.methods.Method")
    return found


__all__ = ["METHODS", "Method", "get_method"]
