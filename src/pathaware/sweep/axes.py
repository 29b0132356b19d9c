"""What `[sweep]` says: lists of values, and ranges for a search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pathaware.errors import UsageError
from pathaware.settings import told

TABLES = ("problem", "method", "training")


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both of them included; whole ones if both ends are. With `log` small
    ones are tried as often as large ones."""

    low: float
    high: float
    log: bool = False

    @classmethod
    def read(cls, name: str, given: Mapping[str, Any]) -> Range:
        wrong = UsageError(
            f"{name}: {told(dict(given))} is not allowed; a range is {{ low = …, high = …, log = true }}"
        )
        if not {"low", "high"} <= set(given) <= {"low", "high", "log"}:
            raise wrong
        low, high, log = given["low"], given["high"], given.get("log", False)
        if type(log) is not bool or not all(type(end) in (int, float) for end in (low, high)):
            raise wrong
        if not (_finite(low) and _finite(high) and low < high):
            raise UsageError(f"{name}: low must be below high, and both finite")
        if log and low <= 0:
            raise UsageError(f"{name}: low must be above 0 where log = true")
        return cls(low, high, log)

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


def read_axes(table: Mapping[str, Any]) -> dict[str, list[Any] | Range]:
    """The settings to vary by their full names: `"training.rate"`, or `training.rate` without quotes."""
    axes: dict[str, list[Any] | Range] = {}
    for name, given in _flat(table).items():
        if name.partition(".")[0] not in TABLES or not name.partition(".")[2]:
            raise UsageError(
                f"[sweep] {name}: no such setting; write problem.X, method.X, training.X, search or trials"
            )
        if isinstance(given, dict):
            axes[name] = Range.read(name, given)
        elif isinstance(given, list) and given:
            axes[name] = _different(name, given)
        else:
            raise UsageError(f"[sweep] {name}: {told(given)} is not allowed; a list of values")
    if not axes:
        raise UsageError("[sweep]: it must list at least one setting, such as training.seed = [0, 1, 2]")
    return axes


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, given in table.items():
        nested = name in TABLES and isinstance(given, dict)
        for key, value in (
            {f"{name}.{k}": v for k, v in given.items()}.items() if nested else ((name, given),)
        ):
            if key in flat:
                raise UsageError(f"[sweep] {key}: given twice")
            flat[key] = value
    return flat


def _different(name: str, values: list[Any]) -> list[Any]:
    """A value that is there twice would be two runs in one folder. True is not 1."""
    for i, value in enumerate(values):
        if any(type(value) is type(other) and value == other for other in values[:i]):
            raise UsageError(f"[sweep] {name}: {told(value)} is given twice")
    return values


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False
