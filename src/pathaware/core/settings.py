"""Checks that a setting from a file or a command line is of the kind its owner declares."""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pathaware.core.errors import UsageError

LARGEST = 2**62 - 1
"""Of whole numbers: PyTorch counts to twice as many, and some are added to each other."""


def _kinds(hint: Any) -> list[Any]:
    return list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]


def coerce(name: str, value: Any, hint: Any) -> Any:
    """`value` as the annotation `hint` wants it, or a `UsageError` that names the setting.

    >>> coerce("rate", 1, float)
    1.0
    >>> coerce("skip", None, int | None) is None
    True
    """
    for kind in _kinds(hint):
        if kind is NoneType and value is None:
            return None
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            if _finite(value):
                return float(value)
        elif kind is int and type(value) is int:
            if abs(value) <= LARGEST:
                return value
        elif kind in (bool, str) and type(value) is kind:
            return value
    raise UsageError(f"{name}: {short_repr(value)} is not allowed; {_describe(hint)}")


def short_repr(value: Any) -> str:
    """A value as it was given, but not at any length; Python itself refuses to write very large numbers."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 100 else f"{text[:100]}…"


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def at_least(least: float, **settings: float) -> None:
    """Refuse any of these settings that is below `least`."""
    for name, value in settings.items():
        if value < least:
            raise UsageError(f"{name}: {value} is not allowed; at least {least}")


def _describe(hint: Any) -> str:
    names = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}
    words = []
    for kind in _kinds(hint):
        if kind is NoneType:
            words.append("none")
        elif get_origin(kind) is Literal:
            words.append(f"one of {', '.join(map(str, get_args(kind)))}")
        else:
            words.append(names.get(kind, str(kind)))
    return " or ".join(words)


# Networks and methods of your own, named in settings as `package.module:attribute`.
#
# To import a module is to run it, and settings come with runs that others have trained. So only a module is
# load_plugin that the caller has named, has load_plugin, or trusts by `PATHAWARE_TRUST=module,…`.


_trusted: set[str] = set()


def trust(tables: Mapping[str, Any]) -> None:
    """Trust the modules that these settings name: to be called where a person has given them."""
    for table in tables.values():
        for value in table.values() if isinstance(table, Mapping) else ():
            if isinstance(value, str) and ":" in value:
                _trusted.add(value.partition(":")[0])


def load_plugin(kind: str, name: str) -> Any:
    """What `package.module:attribute` is; `kind` names the setting in errors."""
    module, _, attribute = name.partition(":")
    allowed = _trusted | set(os.environ.get("PATHAWARE_TRUST", "").split(","))
    if module not in sys.modules and module not in allowed:
        raise UsageError(f"{kind}: {name} is code; if you trust it, set PATHAWARE_TRUST={module}")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{kind}: {name} cannot be load_plugin ({error})") from None
