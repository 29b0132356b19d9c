"""A goal as a table: our number beside the paper's, how it was trained, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence

from pathaware.report.tables.model import NOTHING, Remark, Row, Table
from pathaware.reproduce.goal import Goal, Place
from pathaware.reproduce.results import Result, Results


def render(goal: Goal, results: Results) -> Table:
    length = results.common_length(goal.trials()) if goal.equal else None
    found = {
        (line.key, column): results.of(place.trial, length)
        for line in goal.lines
        for column, place in line.places.items()
    }
    header: list[str] = ["method"]
    for column in goal.columns:
        header += [column, "the paper"]
    rows = []
    for line in goal.lines:
        cells: list[str] = [line.label]
        for column, place in line.places.items():
            cells += [ours(place, found[line.key, column], goal.metric), place.printed]
        told = (training(p, found[line.key, column], goal.metric) for column, p in line.places.items())
        cells.append("; ".join(dict.fromkeys(t for t in told if t != NOTHING)) or NOTHING)
        rows.append(Row(tuple(cells), line.group))
    return Table(goal.title, (*header, "training"), rows, goal.notes)


def shown(value: float, interval: float, metric: str) -> str:
    if metric == "accuracy":
        return f"{100 * value:.2f} ± {100 * interval:.2f}"
    return f"{value:.4f} ± {interval:.4f}"


def mean(results: Sequence[Result], metric: str) -> tuple[float, float]:
    """Over seeds. All meet the same tasks, so the interval over tasks does not shrink with their number."""
    pairs = [result.value(metric) for result in results]
    return sum(value for value, _ in pairs) / len(pairs), sum(ci for _, ci in pairs) / len(pairs)


def ours(place: Place, results: Sequence[Result], metric: str) -> str:
    if results:
        return shown(*mean(results, metric), metric)
    return Remark(f"not run: {place.reason}" if place.reason else "not run")


def training(place: Place, results: Sequence[Result], metric: str) -> str:
    """`17,000 of 60,000 iterations, 3 seeds (68.2–69.1), NVIDIA H200`"""
    if not results:
        return NOTHING
    full, length = place.trial.config().training.iterations, results[0].iterations
    part = f"{length:,}" if length == full else f"{length:,} of {full:,}"
    seeds = "1 seed" if len(results) == 1 else f"{len(results)} seeds ({span(results, metric)})"
    return f"{part} iterations, {seeds}, {results[0].device}"


def span(results: Sequence[Result], metric: str) -> str:
    values = [result.value(metric)[0] for result in results]
    scale, digits = (100, 2) if metric == "accuracy" else (1, 4)
    return f"{scale * min(values):.{digits}f}–{scale * max(values):.{digits}f}"
