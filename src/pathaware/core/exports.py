"""Public names of a package, imported on first use: `pathaware --help` does not wait for PyTorch."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def exports(package: str, public: Mapping[str, str]) -> tuple[Any, Any, list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package, from the `public` names of its modules."""
    modules = {name: f"{package}.{module}" for module, names in public.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    return get, lambda: sorted({*vars(sys.modules[package]), *modules}), sorted(modules)


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller of the caller that a name goes in the next release."""
    warnings.warn(f"{old} goes in 0.4; use {new}", FutureWarning, stacklevel=3)


class Renamed:
    """An attribute under the name that it had in the last release."""

    def __init__(self, new: str) -> None:
        self.new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self.old = name

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        warn_renamed(f"{owner.__name__}.{self.old}", self.new)
        return getattr(instance, self.new)
