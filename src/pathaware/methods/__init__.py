"""The methods by name, one per file: citation, equations, departures from the authors' code, `METHOD`.

To add one, write a file that defines `METHOD` and add its name to `pathaware.METHOD_FILES`, see `Method`.
Outside of this package, name your own `Method` as `package.module:METHOD`.

All methods that adapt step by step share some things that are not in their papers: the divergence guard (see
`MetaLearner`), and what training does to the meta-gradient (Adam, clipping, a learning-rate schedule).
"""

from __future__ import annotations

import inspect
import sys
from importlib import import_module

import pathaware
from pathaware.core.errors import UsageError, did_you_mean
from pathaware.core.settings import load_plugin
from pathaware.methods.maml import GradientDescent
from pathaware.methods.meta_sgd import MetaSGD
from pathaware.methods.method import Method
from pathaware.methods.pamela import Pamela
from pathaware.methods.reptile import Reptile

_MODULES = {name: import_module(f"{__name__}.{name}") for name in pathaware.METHOD_FILES}
METHODS: dict[str, Method] = {module.METHOD.name: module.METHOD for module in _MODULES.values()}
FUNCTIONS = {name: module.METHOD.function(inspect.getdoc(module) or "") for name, module in _MODULES.items()}
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
    module = _MODULES[method.function_name] if name in METHODS else sys.modules[name.partition(":")[0]]
    return inspect.getdoc(module) or inspect.getdoc(method.adapter) or ""


__all__ = [
    "METHODS",
    "GradientDescent",
    "MetaSGD",
    "Method",
    "Pamela",
    "Reptile",
    "describe_method",
    "get_method",
]
