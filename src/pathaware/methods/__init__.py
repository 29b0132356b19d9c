"""The methods by name, one per file: citation, equations, departures from the authors' code, `METHOD`.

To add a method, write a file that defines `METHOD` and add its name to `_FILES`; see `Method`. Outside of
this package, name your own `Method` as `package.module:METHOD`.

All methods that adapt step by step share some things that are not in their papers: the divergence guard (see
`MetaLearner`), and what training does to the meta-gradient (Adam, clipping, a learning-rate schedule).
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module

from pathaware.core.errors import UsageError, did_you_mean
from pathaware.core.settings import load_plugin
from pathaware.methods.method import Method

_FILES = (
    "maml",
    "fomaml",
    "umtra",
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
    "imaml_hf",
    "l2l",
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
    "proto_pamela",
    "matching",
    "relation",
    "siamese",
    "mann",
    "meta_networks",
    "lstm",
)

_MODULES = {module.METHOD.name: module for module in (import_module(f"{__name__}.{file}") for file in _FILES)}
METHODS: dict[str, Method] = {name: module.METHOD for name, module in _MODULES.items()}
FUNCTIONS = {
    module.METHOD.function_name: module.METHOD.function(inspect.getdoc(module) or "")
    for module in _MODULES.values()
}
"""The methods as functions, such as `imaml(network, loss, steps=10, strength=0.5)`, by their names."""


def get_method(name: str) -> Method:
    """One of `METHODS`, or your own as `package.module:METHOD`."""
    if name in METHODS:
        return METHODS[name]
    if ":" not in name:
        raise UsageError(
            f"method: {name!r} must be one of {', '.join(METHODS)}, or package.module:METHOD"
            + did_you_mean(name, METHODS)
        )
    method = load_plugin("method", name)
    if not isinstance(method, Method):
        raise UsageError(f"method: {name} is {type(method).__name__}, not a pathaware.methods.Method")
    return method


def describe_method(name: str) -> str:
    """The docstring of the file that defines a method, or else of its rule or head."""
    method = get_method(name)
    module = _MODULES.get(name) or sys.modules[name.partition(":")[0]]
    return inspect.getdoc(module) or inspect.getdoc(method.kind) or ""


__all__ = ["METHODS", "Method", "describe_method", "get_method"]
