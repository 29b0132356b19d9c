"""Renders table specifications: our number beside the paper's, how it was trained, or why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pathaware.data.store import counted
from pathaware.methods import METHODS
from pathaware.report.paper_numbers import IMAGE_ACCURACY
from pathaware.sweep.intervals import mean, value_range, with_interval
from pathaware.training.metric import ACCURACY, Metric
from pathaware.training.presets import load_preset, paper_problem, presets
from pathaware.training.tables import NOTHING, Remark, Row, Table
from pathaware_research.experiments import Experiment, Result, Results, own_level
from pathaware_research.paper.tables import DATA, NOT_RUN, CellSpec, RowSpec, TableSpec, is_imported


def render(spec: TableSpec, results: Results) -> Table:
    if spec.equal_time:
        return _render_ranking(spec, results)
    results = results.in_one_precision(spec.experiments())
    length = spec.iterations or results.common_length(spec.experiments())
    header: list[str] = ["method"]
    printed = {column for row in spec.rows for column, cell in row.cells.items() if cell.printed != NOTHING}
    for column in spec.columns:
        header += [with_level(column, spec.metric), *(["the paper"] if column in printed else [])]
    # The length that most rows share comes first; another one is better than none where rows may differ.
    lengths = [length] if spec.iterations or spec.equal_iterations else [length, None]
    found = [
        {
            column: next(filter(None, (results.of(cell.experiment, each) for each in lengths)), [])
            for column, cell in row.cells.items()
        }
        for row in spec.rows
    ]
    ways = {
        _how_trained(row.cells[column], there)
        for row, cells in zip(spec.rows, found, strict=True)
        for column, there in cells.items()
        if there
    }
    tasks = Counter(
        result.record["result"]["tasks"] for cells in found for there in cells.values() for result in there
    )
    usual = max(tasks, key=lambda each: tasks[each], default=0)
    # What all rows share is said once.
    shared = ways.pop() if len(ways) == 1 and sum(any(cells.values()) for cells in found) > 1 else ""
    rows = []
    for row, cells in zip(spec.rows, found, strict=True):
        texts: list[str] = [row.label]
        training: list[str] = []
        for column, cell in row.cells.items():
            texts += [
                _value(cell, cells[column], spec.metric, mark_level=True),
                *([cell.printed] if column in printed else []),
            ]
            if cells[column]:
                count, spread = len(cells[column]), _spread(cells[column], spec.metric)
                seeds = counted(count, "seed")
                how = f"{count}" if shared else f"{_how_trained(cell, cells[column])}, {seeds}"
                training.append(f"{how}{spread}{_fewer_tasks(cells[column], usual)}")
        texts.append("; ".join(dict.fromkeys(training)) or NOTHING)
        rows.append(Row(tuple(texts), row.group))
    notes = (*spec.notes, *([f"All rows: {shared}."] if shared else []))
    return Table(spec.title, (*header, "seeds" if shared else "training"), rows, notes)


def with_level(column: str, metric: Metric) -> str:
    """The heading of a column of accuracies, with the level of transduction of most methods.

    >>> with_level("CIFAR-FS 5-shot", ACCURACY)
    'CIFAR-FS 5-shot, batch'
    """
    return column if metric.lower_is_better else f"{column}, batch"


def _value(cell: CellSpec, results: Sequence[Result], metric: Metric, mark_level: bool = False) -> str:
    """A result, marked if its level of transduction is not that of the heading, see `with_level`."""
    if not results:
        return Remark(f"not run: {cell.reason}") if cell.reason else NOT_RUN
    other = mark_level and not metric.lower_is_better and results[0].queries != "batch"
    return with_interval(results, metric) + (f" ({results[0].queries})" if other else "")


def _how_trained(cell: CellSpec, results: Sequence[Result]) -> str:
    """`17,000 of 60,000 iterations, bf16, NVIDIA H200`"""
    full, length = cell.experiment.config().training.iterations, results[0].iterations
    part = f"{length:,}" if length == full else f"{length:,} of {full:,}"
    return f"{part} iterations, {results[0].precision}, {results[0].device}"


def _fewer_tasks(results: Sequence[Result], usual: int) -> str:
    """`, 600 tasks` if a result was evaluated on another number of tasks than most of the table."""
    others = {result.record["result"]["tasks"] for result in results} - {usual}
    return f", {' and '.join(f'{each:,}' for each in sorted(others))} tasks" if others else ""


def _spread(results: Sequence[Result], metric: Metric) -> str:
    """` (68.20–69.10)`, or nothing for one seed"""
    return "" if len(results) == 1 else f" ({value_range(results, metric)})"


# All methods with the same network, data, training time and evaluation tasks.


def method_table(data: str, available: Callable[[str], bool] = is_imported) -> TableSpec:
    """One row per method.

    No checkpoint is chosen on validation classes, which takes time that only some methods need; the last one
    counts.
    """
    shots = method_experiment(data, "maml").tables["problem"]["shots"]
    column = f"{DATA.get(data, data)} {shots}-shot"
    reason = "" if available(data) else "data set not imported"
    printed = IMAGE_ACCURACY.get((data, shots), {})
    rows = [
        RowSpec(
            name,
            name,
            {column: CellSpec(method_experiment(data, name), printed.get(name, NOTHING), reason)},
        )
        for name in METHODS
    ]
    notes = [
        "Accuracy in % on new 5-way tasks, with 95 % intervals; every row trained for the same time on the "
        "same machine, with the method's default settings, and evaluated on the same tasks. The paper's "
        "column is what it prints, of networks trained to the end.",
    ]
    title = f"All methods on {DATA.get(data, data)}, in the same time"
    return TableSpec("methods", title, ACCURACY, [column], rows, notes, equal_time=True)


def method_experiment(data: str, name: str) -> Experiment:
    """5-shot with the paper's settings, or those of the preset named after the data set."""
    preset: dict[str, Any] = load_preset(data, name) if data in presets() else {"problem": {"shots": 5}}
    known = METHODS[name].settings()
    method = {key: value for key, value in preset.get("method", {}).items() if key in known}
    tables = {
        "problem": {**paper_problem(data), **preset["problem"]},
        "method": {**method, "name": name},
        "training": {**preset.get("training", {}), "validate": 0},
    }
    return Experiment(f"methods-{data}-{name}", tables)


def _render_ranking(spec: TableSpec, results: Results) -> Table:
    """The methods that were run, best first, then the others. Seconds are of training alone.

    The paper has a column if it prints something for this data set.
    """
    (column,) = spec.columns
    results = results.in_one_precision(spec.experiments())
    cited = any(row.cells[column].printed != NOTHING for row in spec.rows)
    rows = []
    for row in spec.rows:
        cell, method = row.cells[column], METHODS[row.key]
        found = results.of(cell.experiment)
        level = found[0].queries if found else own_level(cell.experiment.config())
        about = (method.name, str(method.year), method.order, level)
        if found:
            before = sum(r.record["result"]["accuracy_per_step"][0] for r in found) / len(found)
            seconds = sum(r.record["training_seconds"] for r in found) / len(found)
            length = (f"{found[0].iterations:,}", f"{seconds:.0f}")
            value, first = mean(found, spec.metric)[0], f"{100 * before:.1f}"
        else:
            value, first, length = 0.0, NOTHING, (NOTHING, NOTHING)
        printed = (cell.printed,) if cited else ()
        rows.append((value, Row((*about, first, _value(cell, found, spec.metric), *printed, *length))))
    rows.sort(key=lambda pair: -pair[0])
    header = ("method", "year", "order", "queries", "before", column, *(["the paper"] if cited else []))
    return Table(spec.title, (*header, "iterations", "seconds"), [row for _, row in rows], spec.notes)
