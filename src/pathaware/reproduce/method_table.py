"""Every method on equal terms: the same network, data, time to train in, and tasks to be judged on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pathaware.methods import METHODS
from pathaware.presets import load_preset, presets
from pathaware.report.paper import IMAGE_ACCURACY
from pathaware.report.tables.model import NOTHING, Row, Table
from pathaware.reproduce.goal import Goal, Line, Place
from pathaware.reproduce.image_tables import DATA, imported
from pathaware.reproduce.render import mean, ours
from pathaware.reproduce.results import Results
from pathaware.reproduce.trial import Trial


def method_table(data: str, available: Callable[[str], bool] = imported) -> Goal:
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
    return Goal("methods", title, "accuracy", [column], lines, notes, timed=True)


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
