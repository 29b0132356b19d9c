"""How the cost of a meta-iteration grows with the number of tasks, of inner steps, image size and width."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from textwrap import wrap
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from pathaware.core.errors import UsageError
from pathaware.experiments.bench.contestants import ENGINE, Work
from pathaware.experiments.bench.table import number
from pathaware.experiments.bench.timing import in_turns, one_line, warmed_up
from pathaware.experiments.bench.workloads import Inputs, Job, SyntheticImages, Workload
from pathaware.experiments.report.style import FAINT, INK, colour, styled
from pathaware.training.provenance import commit, environment
from pathaware.training.tables import NOTHING, Remark

LINEAR = ("tasks", "steps")
"""Twice of these is twice the work; no more than that must it cost."""
TOLERANCE = 1.1
"""What a median may be off."""


@dataclass(frozen=True)
class Study:
    """Where a machine starts from, and how far each quantity goes from there, the others standing still."""

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
    """The slope of cost over size in a log-log picture, and the most that k times the size costs beyond
    k times the cost: max of cost(k·n) / (k·cost(n)). Below 1 everywhere, growth is slower than linear."""

    exponent: float
    worst: float

    @property
    def at_most_linear(self) -> bool:
        return self.worst <= TOLERANCE

    @classmethod
    def of(cls, points: Mapping[int, float]) -> Growth | None:
        """None for fewer than two points, which have no slope."""
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
    """Time and memory of our training step at every value of the quantities named, all by default."""
    study = study or (ON_CUDA if device.type == "cuda" else ON_CPU)
    for name in names:
        if name not in study.values:
            raise UsageError(f"{name!r} is none of {', '.join(study.values)} (with --scaling)", field="rows")
    series = {}
    for name, values in study.values.items():
        if names and name not in names:
            continue
        report(f"{name}: {', '.join(map(str, values))}")
        jobs = {
            value: Job(
                changed(study.base, name, value),
                "training",
                "pamela",
                "second",
                str(device),
                precision,
                threads,
            )
            for value in values
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
        "commit": commit(),
        "environment": environment(),
    }


def changed(base: Workload, name: str, value: int) -> Workload:
    if name in ("tasks", "steps"):
        return replace(base, **{name: value})  # type: ignore[arg-type]
    assert isinstance(base.problem, SyntheticImages)
    return replace(base, problem=replace(base.problem, **{name: value}))  # type: ignore[arg-type]


def growth(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of time, and of memory where it is known."""
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
    return ["from the base", "value", "ms", *(["MB"] if record["device"] == "cuda" else [])]


def lines(record: dict[str, Any]) -> list[list[str]]:
    cells = []
    for name, one in record["series"].items():
        for point in one["points"]:
            time = number(point["ms"]) if "ms" in point else Remark(f"failed: {point['error']}")
            memory = point.get("memory_mb")
            weight = [NOTHING if memory is None else number(memory)] if record["device"] == "cuda" else []
            cells.append([name, str(point["value"]), time, *weight])
    return cells


def verdicts(record: dict[str, Any]) -> list[str]:
    """For tasks and steps: does cost grow at most linearly?"""
    sentences = []
    for name in LINEAR:
        for quantity, fitted in record["series"].get(name, {}).get("growth", {}).items():
            answer = "at most linearly" if fitted["at_most_linear"] else "faster than linearly"
            sentences.append(
                f"{quantity} grows {answer} with {name}: exponent {fitted['exponent']:.2f}, "
                f"largest {quantity}(k·n) / (k·{quantity}(n)) {fitted['worst']:.2f}"
            )
    return sentences


def _points(jobs: Mapping[int, Job], device: torch.device, repeats: int) -> list[dict[str, Any]]:
    """Every value's time and memory. They take turns, so that what else the machine does is no growth; on a
    GPU each comes alone, since a recorded graph keeps its memory and the largest needs all there is."""
    if device.type != "cuda":
        return _together(jobs, device, repeats)
    return [point for value, job in jobs.items() for point in _together({value: job}, device, repeats)]


def _together(jobs: Mapping[int, Job], device: torch.device, repeats: int) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    work = {}
    for value, job in jobs.items():
        job.config().training.apply()
        try:
            work[value], memory = warmed_up(partial(_prepared, job), device)
            found[value] = {"memory_mb": memory}
        except RuntimeError as error:  # the largest may not fit
            found[value] = {"error": one_line(error)}
    times, errors = in_turns(work, repeats, device)
    for value, timing in times.items():
        found[value].update(timing.to_dict())
    for value, line in errors.items():
        found[value] = {"error": line}
    return [{"value": value, **point} for value, point in found.items()]


def _prepared(job: Job) -> Work:
    return ENGINE.training(job, Inputs(job))


# The picture of how cost grows: one panel a quantity, time above and memory below.


QUANTITIES = {"ms": "milliseconds", "memory_mb": "megabytes"}
LABELS = {"tasks": "tasks", "steps": "inner steps", "size": "image size, pixels", "width": "filters"}


def draw(record: dict[str, Any]) -> Figure:
    """Both axes are logarithmic: a line as steep as the grey one is linear growth."""
    series = record["series"]
    known = [
        key
        for key in QUANTITIES
        if any(p.get(key) is not None for one in series.values() for p in one["points"])
    ]
    with styled():
        figure, axes = plt.subplots(
            max(1, len(known)),
            len(series),
            figsize=(3.2 * len(series), 2.9 * max(1, len(known))),
            squeeze=False,
        )
        for row, key in zip(axes, known, strict=False):
            for axis, (name, one) in zip(row, series.items(), strict=True):
                points = {p["value"]: p[key] for p in one["points"] if p.get(key) is not None}
                panel(axis, points)
                axis.set_xlabel(LABELS.get(name, name))
            row[0].set_ylabel(QUANTITIES[key])
        title = f"One meta-iteration of PAMELA, from {record['base']}"
        figure.suptitle("\n".join(wrap(title, 26 * len(series))), fontsize=9)
        axes[0][0].legend()
    return figure


def panel(axis: Axes, points: dict[int, float]) -> None:
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
