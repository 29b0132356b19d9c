"""A sweep's file: a configuration, and what to vary of it."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathaware.errors import UsageError
from pathaware.own_code import trust
from pathaware.presets import load_preset
from pathaware.settings import at_least, fit, told
from pathaware.sweep.axes import TABLES, Range, read_axes
from pathaware.sweep.point import SEED, Point, folder_name
from pathaware.training.config import Config
from pathaware.training.session import check
from pathaware.training.toml import read_toml_file

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
        tables = read_toml_file("FILE", path)
        try:
            plan = cls._of(tables)
            plan._check()
        except UsageError as error:
            raise UsageError(f"FILE: {path}: {error}") from None
        return plan

    @classmethod
    def _of(cls, tables: dict[str, Any]) -> Plan:
        for name, table in tables.items():
            if name not in ("preset", "sweep", *TABLES):
                raise UsageError(
                    f"[{name}]: no such table; a sweep has preset, {', '.join(TABLES)} and sweep"
                )
            if name != "preset" and not isinstance(table, dict):
                raise UsageError(f"{name}: {told(table)} is not allowed; a table [{name}]")
        base = load_preset(fit("preset", tables["preset"], str)) if "preset" in tables else {}
        merged = {name: {**base.get(name, {}), **tables.get(name, {})} for name in TABLES}
        varied = dict(tables.get("sweep", {}))
        search, trials = varied.pop("search", None), varied.pop("trials", None)
        if search not in (None, "optuna"):
            raise UsageError(f"[sweep] search: {told(search)} is not allowed; optuna, or leave it out")
        if (search is None) != (trials is None):
            raise UsageError("[sweep]: search and trials go together")
        if trials is not None:
            at_least(1, trials=fit("trials", trials, int))
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
                check(point.config.trained(device="cpu"))
            except UsageError as error:
                raise UsageError(f"{point.name}: {error}") from None
            metrics.add(point.config.problem.metric)
        if len(metrics) > 1:
            raise UsageError("[sweep] problem.name: errors and accuracies cannot share a table")
