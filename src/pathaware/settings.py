"""Checks that a setting from a file or a command line is of the kind its owner declares."""

from __future__ import annotations

import math
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pathaware.errors import UsageError

LARGEST = 2**62 - 1
"""Of whole numbers: PyTorch counts to twice as many, and some are added to each other."""


def _kinds(hint: Any) -> list[Any]:
    return list(get_args(hint)) if get_origin(hint) in (Union, UnionType) else [hint]


def fit(name: str, value: Any, hint: Any) -> Any:
    """`value` as the annotation `hint` wants it, or a `UsageError` that names the setting.

    >>> fit("rate", 1, float)
    1.0
    >>> fit("skip", None, int | None) is None
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
    raise UsageError(f"{name}: {told(value)} is not allowed; {_describe(hint)}")


def told(value: Any) -> str:
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
