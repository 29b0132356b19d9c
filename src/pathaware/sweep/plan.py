"""A sweep file: a configuration, and the settings to vary in it as lists of values or ranges."""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pathaware.core.errors import UsageError, did_you_mean
from pathaware.core.settings import at_least, coerce, short_repr, trust
from pathaware.sweep.run_store import PlannedRun
from pathaware.training.config import Config, format_value, read_toml_file
from pathaware.training.meta_training import MetaTraining
from pathaware.training.presets import load_preset

TABLES = ("problem", "method", "training")


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; integers if both ends are.

    With `log` a search samples their logarithm uniformly.
    """

    low: float
    high: float
    log: bool = False

    @classmethod
    def read(cls, name: str, given: Mapping[str, Any]) -> Range:
        form = "{ low = …, high = …, log = true }"
        wrong = UsageError(f"{name}: {short_repr(dict(given))} is not allowed; a range is {form}")
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
    """Read the settings to vary, by full name: `"training.rate"`, or `training.rate` without quotes."""
    axes: dict[str, list[Any] | Range] = {}
    for name, given in _flat(table).items():
        if name.partition(".")[0] not in TABLES or not name.partition(".")[2]:
            raise UsageError(
                f"[sweep] {name}: no such setting; write problem.X, method.X, training.X, search or trials"
            )
        if isinstance(given, dict):
            axes[name] = Range.read(name, given)
        elif isinstance(given, list) and given:
            axes[name] = _distinct(name, given)
        else:
            raise UsageError(f"[sweep] {name}: {short_repr(given)} is not allowed; must be a list of values")
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


def _distinct(name: str, values: list[Any]) -> list[Any]:
    """Refuse a value that is given twice, which would be two runs in one folder. True is not 1."""
    for i, value in enumerate(values):
        if any(type(value) is type(other) and value == other for other in values[:i]):
            raise UsageError(f"[sweep] {name}: {short_repr(value)} is given twice")
    return values


def _finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


# Names of runs and settings.


SEED = "training.seed"
_LONGEST = 200  # file systems allow 255 bytes, and records and logs add their endings


def short_value(value: Any) -> str:
    """Format a value for a table: numbers that a search drew are rounded."""
    text = format_value(value)
    return f"{value:.4g}" if isinstance(value, float) and len(text) > 10 else text


def short_names(names: list[str]) -> dict[str, str]:
    """Shorten full names of settings to the last word, unless two of them share it."""
    words = {name: "method" if name == "method.name" else name.partition(".")[2] for name in names}
    return {name: word if list(words.values()).count(word) == 1 else name for name, word in words.items()}


def folder_name(settings: Mapping[str, Any]) -> str:
    """`method=pamela,rate=0.001,seed=0`: a safe file name, different for different settings."""
    words = short_names(list(settings))
    name = ",".join(f"{words[key]}={quote(format_value(value), safe='')}" for key, value in settings.items())
    if len(name) <= _LONGEST:
        return name
    return f"{name[:_LONGEST]},{hashlib.sha256(name.encode()).hexdigest()[:8]}"


MOST = 10_000
"""The largest grid; more runs are a mistake in the file."""


@dataclass(frozen=True)
class SweepPlan:
    """A configuration in tables, `base`, and the settings to vary in it, `axes`.

    With `trials` a search chooses that many combinations; otherwise all of them are trained.
    """

    base: Mapping[str, Mapping[str, Any]]
    axes: Mapping[str, list[Any] | Range]
    trials: int = 0
    preset: str = ""

    @classmethod
    def read(cls, path: Path) -> SweepPlan:
        """Read a file and check every combination, before anything is trained."""
        tables = read_toml_file("file", path)
        try:
            plan = cls._of(tables)
            plan._check()
        except UsageError as error:
            raise UsageError(f"{path}: {error}", field="file") from None
        return plan

    @classmethod
    def _of(cls, tables: dict[str, Any]) -> SweepPlan:
        for name, table in tables.items():
            if name not in ("preset", "sweep", *TABLES):
                hint = did_you_mean(name, ("preset", "sweep", *TABLES))
                raise UsageError(
                    f"[{name}]: no such table; a sweep has preset, {', '.join(TABLES)} and sweep{hint}"
                )
            if name != "preset" and not isinstance(table, dict):
                raise UsageError(f"{name}: {short_repr(table)} is not allowed; must be a table [{name}]")
        preset = coerce("preset", tables["preset"], str) if "preset" in tables else ""
        varied = dict(tables.get("sweep", {}))
        search, trials = varied.pop("search", None), varied.pop("trials", None)
        if search not in (None, "optuna"):
            raise UsageError(
                f"[sweep] search: {short_repr(search)} is not allowed; must be optuna, or leave it out"
            )
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
            raise UsageError(
                f"[sweep] {SEED}: a search uses one seed; sweep over seeds with the settings it finds"
            )
        own = {name: tables[name] for name in TABLES if name in tables}
        return cls(own, axes, trials or 0, preset)

    def run(self, settings: Mapping[str, Any], name: str = "") -> PlannedRun:
        """The run with these settings in place of those of the base."""
        own = copy.deepcopy({name: dict(self.base.get(name, {})) for name in TABLES})
        for full, value in settings.items():
            table, _, key = full.partition(".")
            own[table][key] = value
        preset = load_preset(self.preset, own["method"].get("name", "pamela")) if self.preset else {}
        tables = {name: {**preset.get(name, {}), **values} for name, values in own.items()}
        name = name or folder_name(settings)
        trust(tables)
        try:
            return PlannedRun(name, Config.from_dict(tables), settings)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None

    def grid(self) -> Iterator[PlannedRun]:
        """Yield all combinations of the lists, and of the ends of ranges; the last setting varies fastest."""
        ends = [[axis.low, axis.high] if isinstance(axis, Range) else axis for axis in self.axes.values()]
        for values in itertools.product(*ends):
            yield self.run(dict(zip(self.axes, values, strict=True)))

    def _check(self) -> None:
        count = math.prod(2 if isinstance(axis, Range) else len(axis) for axis in self.axes.values())
        if count > MOST:
            raise UsageError(f"[sweep]: {count:,} runs; at most {MOST:,}")
        metrics = set()
        for run in self.grid():
            try:
                _ = run.config.training.torch_device  # it must exist, but its memory is left to the runs
                MetaTraining(run.config.with_training(device="cpu")).try_out()
            except UsageError as error:
                raise UsageError(f"{run.name}: {error}") from None
            metrics.add(run.config.problem.metric)
        if len(metrics) > 1:
            raise UsageError("[sweep] problem.name: errors and accuracies cannot share a table")
