"""Settings from files, command lines and the environment: checks of types, and plug-ins that they name.

A network or a method can be named as `package.module:attribute`. Importing a module runs it, and a run folder
from somebody else brings its settings along. So a module is loaded only if the caller has named it (`trust`),
has imported it, or lists it in `PATHAWARE_TRUST=module,…`.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pathaware.core.errors import UsageError

MAX_INTEGER = 2**62 - 1
"""Largest accepted integer: half of int64, so that sums do not overflow."""

_DESCRIPTIONS = {int: "an integer", float: "a finite number", bool: "true or false", str: "a string"}


type_hints: Callable[[Any], dict[str, Any]] = lru_cache(get_type_hints)
"""The annotations of a class or function, evaluated once. Do not change the result."""


def coerce(name: str, value: Any, hint: Any) -> Any:
    """Convert `value` to the type that the annotation `hint` declares, or raise a `UsageError`.

    >>> coerce("rate", 1, float)
    1.0
    >>> coerce("skip", None, int | None) is None
    True
    """
    for kind in _alternatives(hint):
        if kind is NoneType and value is None:
            return None
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            if _finite(value):
                return float(value)
        elif kind is int and type(value) is int:
            if abs(value) <= MAX_INTEGER:
                return value
        elif kind in (bool, str) and type(value) is kind:
            return value
    allowed = " or ".join(_describe(kind) for kind in _alternatives(hint))
    raise UsageError(f"{name}: {short_repr(value)} is not allowed; must be {allowed}")


def at_least(least: float, **settings: float) -> None:
    """Raise if any of these settings is below `least` or NaN."""
    for name, value in settings.items():
        if not value >= least:
            raise UsageError(f"{name}: {value} is not allowed; must be at least {least}")


def fractions(**settings: float) -> None:
    """Raise if any of these settings is not between 0 and 1."""
    for name, value in settings.items():
        if not 0 <= value <= 1:
            raise UsageError(f"{name}: {value} is not allowed; must be 0 to 1")


def positive(**settings: float) -> None:
    """Raise if any of these settings is not above 0."""
    for name, value in settings.items():
        if value <= 0:
            raise UsageError(f"{name}: {value} is not allowed; must be a positive number")


def at_most(most: int, **settings: int) -> None:
    """Raise if any of these settings is above `most`."""
    for name, value in settings.items():
        if value > most:
            raise UsageError(f"{name}: {short_repr(value)} is not allowed; must be at most {most:,}")


def one_of(choices: Any, **settings: str) -> None:
    """Raise if any of these settings is no value of a `Literal`."""
    for name, value in settings.items():
        if value not in get_args(choices):
            raise UsageError(f"{name}: {value!r} must be one of {', '.join(get_args(choices))}")


def short_repr(value: Any) -> str:
    """`repr(value)`, truncated."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print very large integers
        return "a number of thousands of digits"
    return text if len(text) <= 100 else f"{text[:100]}…"


def _alternatives(hint: Any) -> list[Any]:
    return list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _describe(kind: Any) -> str:
    if kind is NoneType:
        return "none"
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    return _DESCRIPTIONS.get(kind, str(kind))


def data_dir(chosen: Path | None = None) -> Path:
    """The folder of the imported data sets: `chosen`, else `$PATHAWARE_DATA`, else in the XDG data home."""
    if chosen is not None:
        if chosen.exists() and not chosen.is_dir():
            raise UsageError(f"{chosen} is a file, not a folder", field="data_dir")
        return chosen
    if named := os.environ.get("PATHAWARE_DATA"):
        return Path(named).expanduser()
    home = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(home).expanduser() / "pathaware"


_trusted: set[str] = set()


def trust(tables: Mapping[str, Any]) -> None:
    """Trust the modules that these settings name; call it with settings that the user has given."""
    for table in tables.values():
        for value in table.values() if isinstance(table, Mapping) else ():
            if isinstance(value, str) and ":" in value:
                _trusted.add(value.partition(":")[0])


def is_trusted(module: str) -> bool:
    """True if the user has named this module, or lists it in `PATHAWARE_TRUST`."""
    return module in _trusted | set(os.environ.get("PATHAWARE_TRUST", "").split(","))


def load_plugin(setting: str, name: str) -> Any:
    """Return the object `package.module:attribute`; `setting` is the setting that errors name."""
    module, _, attribute = name.partition(":")
    if module not in sys.modules and not is_trusted(module):
        raise UsageError(f"{setting}: {name} is code; if you trust it, set PATHAWARE_TRUST={module}")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # importing runs the module, which may raise anything
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name == module:
            reason += "; if it is in this folder, use python -m pathaware"
        raise UsageError(f"{setting}: {name} cannot be imported ({reason})") from error
