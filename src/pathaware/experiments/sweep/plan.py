"""What `[sweep]` says: lists of values, and ranges for a search."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pathaware.core.errors import UsageError
from pathaware.core.plugins import trust
from pathaware.core.settings import at_least, coerce, short_repr
from pathaware.training.config import Config, read_toml_file
from pathaware.training.presets import load_preset
from pathaware.training.session import check

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
            f"{name}: {short_repr(dict(given))} is not allowed; a range is {{ low = …, high = …, log = true }}"
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
            raise UsageError(f"[sweep] {name}: {short_repr(given)} is not allowed; a list of values")
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
            raise UsageError(f"[sweep] {name}: {short_repr(value)} is given twice")
    return values


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


# One run of a sweep: what it varies, and the configuration that makes.


SEED = "training.seed"
_LONGEST = 200  # file systems end at 255 bytes, and records and logs add their endings


@dataclass(frozen=True)
class Point:
    """`settings` are those that the sweep varies, as `"training.rate"`; `name` is for folders and files."""

    name: str
    settings: Mapping[str, Any]
    config: Config


def shown(value: Any) -> str:
    """As the configuration file has it, without quotes."""
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def brief(value: Any) -> str:
    """The same for a table: of a number that a search drew, nobody reads the last digits."""
    text = shown(value)
    return f"{value:.4g}" if isinstance(value, float) and len(text) > 10 else text


def short(names: list[str]) -> dict[str, str]:
    """What settings are called where there is little room: their last word, unless two of them share it."""
    words = {name: "method" if name == "method.name" else name.partition(".")[2] for name in names}
    return {name: word if list(words.values()).count(word) == 1 else name for name, word in words.items()}


def folder_name(settings: Mapping[str, Any]) -> str:
    """`method=pamela,rate=0.001,seed=0`: different for different settings, whatever their values hold."""
    words = short(list(settings))
    name = ",".join(f"{words[key]}={quote(shown(value), safe='')}" for key, value in settings.items())
    if len(name) <= _LONGEST:
        return name
    return f"{name[:_LONGEST]},{hashlib.sha256(name.encode()).hexdigest()[:8]}"


# A sweep's file: a configuration, and what to vary of it.


MOST = 10_000
"""Runs of a grid. More are a slip in the file: nobody waits for so many, or reads such a table."""


@dataclass(frozen=True)
class Plan:
    """`base` is a configuration in tables, `axes` what varies. With `trials` that many points are searched
    for; else all combinations are trained."""

    base: Mapping[str, Mapping[str, Any]]
    axes: Mapping[str, list[Any] | Range]
    trials: int = 0

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Checked to the last combination; what cannot be trained is refused before anything is."""
        tables = read_toml_file("file", path)
        try:
            plan = cls._of(tables)
            plan._check()
        except UsageError as error:
            raise UsageError(f"{path}: {error}", field="file") from None
        return plan

    @classmethod
    def _of(cls, tables: dict[str, Any]) -> Plan:
        for name, table in tables.items():
            if name not in ("preset", "sweep", *TABLES):
                raise UsageError(
                    f"[{name}]: no such table; a sweep has preset, {', '.join(TABLES)} and sweep"
                )
            if name != "preset" and not isinstance(table, dict):
                raise UsageError(f"{name}: {short_repr(table)} is not allowed; a table [{name}]")
        base = load_preset(coerce("preset", tables["preset"], str)) if "preset" in tables else {}
        merged = {name: {**base.get(name, {}), **tables.get(name, {})} for name in TABLES}
        varied = dict(tables.get("sweep", {}))
        search, trials = varied.pop("search", None), varied.pop("trials", None)
        if search not in (None, "optuna"):
            raise UsageError(f"[sweep] search: {short_repr(search)} is not allowed; optuna, or leave it out")
        if (search is None) != (trials is None):
            raise UsageError("[sweep]: search and trials go together")
        if trials is not None:
            at_least(1, trials=coerce("trials", trials, int))
        axes = read_axes(varied)
        if search is None:
            for name, axis in axes.items():
                if isinstance(axis, Range):
                    raise UsageError(f'[sweep] {name}: a range needs search = "optuna"; else give a list')
        elif SEED in axes:
            raise UsageError(f"[sweep] {SEED}: a search keeps to one seed; sweep what it finds over seeds")
        return cls(merged, axes, trials or 0)

    def point(self, settings: Mapping[str, Any], name: str = "") -> Point:
        """The run with these settings laid over the base."""
        tables: dict[str, dict[str, Any]] = copy.deepcopy({k: dict(v) for k, v in self.base.items()})
        for full, value in settings.items():
            table, _, key = full.partition(".")
            tables.setdefault(table, {})[key] = value
        name = name or folder_name(settings)
        trust(tables)
        try:
            return Point(name, settings, Config.from_dict(tables))
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None

    def grid(self) -> Iterator[Point]:
        """All combinations of the lists, and of the ends of ranges; the last setting varies fastest."""
        ends = [[axis.low, axis.high] if isinstance(axis, Range) else axis for axis in self.axes.values()]
        for values in itertools.product(*ends):
            yield self.point(dict(zip(self.axes, values, strict=True)))

    def _check(self) -> None:
        count = math.prod(2 if isinstance(axis, Range) else len(axis) for axis in self.axes.values())
        if count > MOST:
            raise UsageError(f"[sweep]: {count:,} runs; at most {MOST:,}")
        metrics = set()
        for point in self.grid():
            try:
                _ = point.config.training.torch_device  # must be there, but is left free for the runs
                check(point.config.with_training(device="cpu"))
            except UsageError as error:
                raise UsageError(f"{point.name}: {error}") from None
            metrics.add(point.config.problem.metric)
        if len(metrics) > 1:
            raise UsageError("[sweep] problem.name: errors and accuracies cannot share a table")
