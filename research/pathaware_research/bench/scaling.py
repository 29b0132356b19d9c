"""How the cost of a meta-iteration grows with tasks, inner steps, image size and width."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from textwrap import wrap
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from pathaware.core.errors import UsageError
from pathaware.report.style import FAINT, INK, colour, styled, subplots
from pathaware.training.tables import NOTHING, Remark
from pathaware_research.bench.comparison import number
from pathaware_research.bench.implementations import ENGINE
from pathaware_research.bench.timing import Work, in_turns, one_line, warmed_up
from pathaware_research.bench.workloads import Inputs, Job, SyntheticImages, Workload

LINEAR = ("tasks", "steps")
"""Quantities in which the cost must grow at most linearly."""
TOLERANCE = 1.1
"""The allowed excess over linear growth, for the noise of medians."""


@dataclass(frozen=True)
class Study:
    """A base workload, and the values of each quantity while the others keep their base value."""

    base: Workload
    values: Mapping[str, tuple[int, ...]]


ON_CUDA = Study(
    Workload("scaling", "scaling", SyntheticImages(shots=5, size=84, width=64)),
    {
        "tasks": (1, 2, 4, 8, 16, 32, 64),
        "steps": (1, 2, 5, 10, 20),
        "size": (28, 42, 56, 84),
        "width": (32, 64, 128),
    },
)
ON_CPU = Study(
    Workload("scaling", "scaling", SyntheticImages(shots=1, queries=5, size=28, width=32)),
    {"tasks": (1, 2, 4, 8, 16), "steps": (1, 2, 5, 10), "size": (28, 42, 56), "width": (16, 32, 64)},
)


@dataclass(frozen=True)
class Growth:
    """Growth of cost with size: the exponent fitted on log-log axes, and the largest cost(k·n) / (k·cost(n)).

    If the latter is below 1, growth is slower than linear everywhere.
    """

    exponent: float
    worst: float

    @property
    def at_most_linear(self) -> bool:
        return self.worst <= TOLERANCE

    @classmethod
    def of(cls, points: Mapping[int, float]) -> Growth | None:
        """The growth through these points; None for fewer than two."""
        if len(points) < 2:
            return None
        sizes = sorted(points)
        logs = np.log([[n, points[n]] for n in sizes])
        excess = [points[m] / points[n] / (m / n) for n in sizes for m in sizes if m > n]
        return cls(float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0]), max(excess))


def measure(
    names: Sequence[str] = (),
    *,
    device: torch.device,
    precision: str,
    repeats: int,
    threads: int | None = None,
    study: Study | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Time and memory of our meta-iteration at every value of the named quantities, by default of all."""
    study = study or (ON_CUDA if device.type == "cuda" else ON_CPU)
    for name in names:
        if name not in study.values:
            raise UsageError(f"{name!r} must be one of {', '.join(study.values)} for scaling", field="rows")
    series = {}
    for name, values in study.values.items():
        if names and name not in names:
            continue
        report(f"{name}: {', '.join(map(str, values))}")
        workloads = {value: changed(study.base, name, value) for value in values}
        jobs = {
            value: Job(workload, "training", "pamela", "second", str(device), precision, threads)
            for value, workload in workloads.items()
        }
        points = _points(jobs, device, repeats)
        series[name] = {"points": points, **growth(points)}
    return {
        "bench": "scaling",
        "device": device.type,
        "precision": precision,
        "repeats": repeats,
        "base": study.base.sizes,
        "series": series,
    }


def changed(base: Workload, name: str, value: int) -> Workload:
    """The workload with another value of one quantity."""
    if name in ("tasks", "steps"):
        return replace(base, **{name: value})  # type: ignore[arg-type]
    assert isinstance(base.problem, SyntheticImages)
    return replace(base, problem=replace(base.problem, **{name: value}))  # type: ignore[arg-type]


def growth(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The growth of time, and of memory if it was measured."""
    found = {}
    for quantity, key in (("time", "ms"), ("memory", "memory_mb")):
        known = {p["value"]: p[key] for p in points if p.get(key) is not None}
        if (fitted := Growth.of(known)) is not None:
            found[quantity] = {
                "exponent": fitted.exponent,
                "worst": fitted.worst,
                "at_most_linear": fitted.at_most_linear,
            }
    return {"growth": found}


def header(record: dict[str, Any]) -> list[str]:
    return ["quantity", "value", "ms", *(["MB"] if record["device"] == "cuda" else [])]


def lines(record: dict[str, Any]) -> list[list[str]]:
    """One row per quantity and value."""
    cells = []
    for name, one in record["series"].items():
        for point in one["points"]:
            time = number(point["ms"]) if "ms" in point else Remark(f"failed: {point['error']}")
            memory = point.get("memory_mb")
            megabytes = [NOTHING if memory is None else number(memory)] if record["device"] == "cuda" else []
            cells.append([name, str(point["value"]), time, *megabytes])
    return cells


def verdicts(record: dict[str, Any]) -> list[str]:
    """Sentences on whether time and memory grow at most linearly with tasks and steps."""
    sentences = []
    for name in LINEAR:
        for quantity, fitted in record["series"].get(name, {}).get("growth", {}).items():
            steepest = f"largest {quantity}(k·n) / (k·{quantity}(n)) {fitted['worst']:.2f}"
            where = "nowhere" if fitted["at_most_linear"] else "in places"
            sentences.append(
                f"{quantity} grows like {name} to the power {fitted['exponent']:.2f}, {where} faster than "
                f"linearly ({steepest})"
            )
    return sentences


def _points(jobs: Mapping[int, Job], device: torch.device, repeats: int) -> list[dict[str, Any]]:
    """Time and memory at every value.

    On a CPU the values take turns, so that other load does not look like growth. On a GPU they are timed one
    by one: a captured graph keeps its memory, and the largest value needs all of it.
    """
    if device.type != "cuda":
        return _time_in_turns(jobs, device, repeats)
    return [point for value, job in jobs.items() for point in _time_in_turns({value: job}, device, repeats)]


def _time_in_turns(jobs: Mapping[int, Job], device: torch.device, repeats: int) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    work = {}
    for value, job in jobs.items():
        job.config().training.apply()
        try:
            work[value], memory = warmed_up(partial(_training, job), device)
            found[value] = {"memory_mb": memory}
        except RuntimeError as error:  # the largest may not fit
            found[value] = {"error": one_line(error)}
    times, errors = in_turns(work, repeats, device)
    for value, timing in times.items():
        found[value].update(timing.to_dict())
    for value, line in errors.items():
        found[value] = {"error": line}
    return [{"value": value, **point} for value, point in found.items()]


def _training(job: Job) -> Work:
    return ENGINE.training(job, Inputs(job))


QUANTITIES = {"ms": "milliseconds", "memory_mb": "megabytes"}
LABELS = {"tasks": "tasks", "steps": "inner steps", "size": "image size, pixels", "width": "filters"}


def draw(record: dict[str, Any]) -> Figure:
    """Panels in two columns, time before memory, on logarithmic axes. The dashed line is linear growth."""
    series = record["series"]
    known = [
        key
        for key in QUANTITIES
        if any(p.get(key) is not None for one in series.values() for p in one["points"])
    ]
    panels = list(itertools.product(known, series.items()))
    columns = min(2, len(series))
    rows = max(1, -(-len(panels) // columns))
    with styled():
        figure, grid = subplots(rows, columns, (3.2 * columns, 2.9 * rows), squeeze=False)
        for axis in grid.flat[len(panels) :]:
            axis.set_axis_off()
        for axis, (key, (name, one)) in zip(grid.flat, panels, strict=False):
            _panel(axis, {p["value"]: p[key] for p in one["points"] if p.get(key) is not None})
            axis.set(xlabel=LABELS.get(name, name), ylabel=QUANTITIES[key])
        title = f"One meta-iteration of PAMELA; base: {record['base']}"
        figure.suptitle("\n".join(wrap(title, 30 * columns)))
        grid[0][0].legend()
    return figure


def _panel(axis: Axes, points: dict[int, float]) -> None:
    if not points:
        return
    sizes = np.array(sorted(points), dtype=float)
    costs = np.array([points[int(n)] for n in sizes])
    axis.loglog(sizes, costs[-1] * sizes / sizes[-1], color=FAINT, linestyle="--", label="linear")
    axis.loglog(sizes, costs, color=colour("pamela"), marker="o", markersize=4, label="measured")
    axis.xaxis.set_major_locator(FixedLocator(list(sizes)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticklabels([f"{n:.0f}" for n in sizes], color=INK)
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda cost, _: f"{cost:,g}"))
    axis.yaxis.set_minor_locator(NullLocator())
