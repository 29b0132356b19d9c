"""A goal as a table: our number beside the paper's, how it was trained, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pathaware.experiments.paper.printed import IMAGE_ACCURACY
from pathaware.experiments.paper.tables import DATA, Goal, Line, Place, Trial, is_imported
from pathaware.experiments.run_store import Result, Results
from pathaware.methods import METHODS
from pathaware.training.metric import ACCURACY, Metric
from pathaware.training.presets import load_preset, presets
from pathaware.training.tables import NOTHING, Remark, Row, Table


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


def mean(results: Sequence[Result], metric: Metric) -> tuple[float, float]:
    """Over seeds. All meet the same tasks, so the interval over tasks does not shrink with their number."""
    pairs = [result.value(metric) for result in results]
    return sum(value for value, _ in pairs) / len(pairs), sum(ci for _, ci in pairs) / len(pairs)


def ours(place: Place, results: Sequence[Result], metric: Metric) -> str:
    if results:
        return metric.with_interval(*mean(results, metric))
    return Remark(f"not run: {place.reason}" if place.reason else "not run")


def training(place: Place, results: Sequence[Result], metric: Metric) -> str:
    """`17,000 of 60,000 iterations, 3 seeds (68.2–69.1), NVIDIA H200`"""
    if not results:
        return NOTHING
    full, length = place.trial.config().training.iterations, results[0].iterations
    part = f"{length:,}" if length == full else f"{length:,} of {full:,}"
    seeds = "1 seed" if len(results) == 1 else f"{len(results)} seeds ({span(results, metric)})"
    return f"{part} iterations, {seeds}, {results[0].device}"


def span(results: Sequence[Result], metric: Metric) -> str:
    values = [result.value(metric)[0] for result in results]
    return f"{metric.format(min(values))}–{metric.format(max(values))}"


# Every method on equal terms: the same network, data, time to train in, and tasks to be judged on.


def method_table(data: str, available: Callable[[str], bool] = is_imported) -> Goal:
    """One row a method. There is no choice of a checkpoint on validation classes, which would take time that
    only some methods need; the last one counts."""
    shots = trial(data, "maml").tables["problem"]["shots"]
    column = f"{DATA.get(data, data)} {shots}-shot"
    reason = "" if available(data) else "data set not imported"
    lines = [
        Line(name, name, {column: Place(trial(data, name), _printed(data, shots, name), reason)})
        for name in METHODS
    ]
    notes = [
        "Accuracy in % on new 5-way tasks, with 95 % intervals; every row trained for the same time on the "
        "same machine, with the method's default settings, and judged on the same tasks. The paper's column "
        "is what it prints, of networks trained to their end.",
    ]
    title = f"All methods on {DATA.get(data, data)}, in the same time"
    return Goal("methods", title, ACCURACY, [column], lines, notes, timed=True)


def show(goal: Goal, results: Results) -> Table:
    """The rows that were run, best first, then the others. Seconds are of training alone. The paper has a
    column where it says something of this data set."""
    (column,) = goal.columns
    cited = any(line.places[column].printed != NOTHING for line in goal.lines)
    rows = []
    for line in goal.lines:
        place, method = line.places[column], METHODS[line.key]
        found = results.of(place.trial)
        about = (method.name, str(method.year), method.order)
        if found:
            before = sum(r.record["result"]["accuracy_per_step"][0] for r in found) / len(found)
            seconds = sum(r.record["training_seconds"] for r in found) / len(found)
            length = (f"{found[0].iterations:,}", f"{seconds:.0f}")
            value, first = mean(found, goal.metric)[0], f"{100 * before:.1f}"
        else:
            value, first, length = 0.0, NOTHING, (NOTHING, NOTHING)
        printed = (place.printed,) if cited else ()
        rows.append((value, Row((*about, first, ours(place, found, goal.metric), *printed, *length))))
    rows.sort(key=lambda pair: -pair[0])
    header = ("method", "year", "order", "before", column, *(["the paper"] if cited else []))
    return Table(goal.title, (*header, "iterations", "seconds"), [row for _, row in rows], goal.notes)


def trial(data: str, name: str) -> Trial:
    """5-shot with the paper's settings, or a data set's own where it has some."""
    own: dict[str, Any] = load_preset(data) if data in presets() else {"problem": {"shots": 5}}
    known = METHODS[name].settings()
    method = {key: value for key, value in own.get("method", {}).items() if key in known}
    tables = {
        "problem": {"name": "classification", "data": data, **own["problem"]},
        "method": {**method, "name": name},
        "training": {**own.get("training", {}), "validate": 0},
    }
    return Trial(f"methods-{data}-{name}", tables)


def _printed(data: str, shots: int, name: str) -> str:
    return IMAGE_ACCURACY.get((data, shots), {}).get(name, NOTHING)
