"""Runs on the same problem side by side, and beside what the paper printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pathaware.report.looks import labels
from pathaware.report.paper import image_accuracy, sine_mse
from pathaware.report.tables.model import NOTHING, Remark, Row, Table
from pathaware.training.classification import Classification
from pathaware.training.evaluation import evaluate
from pathaware.training.regression import Sine
from pathaware.training.run import Run


@dataclass(frozen=True)
class Comparison:
    """Runs with what they reached, and how they came there step by step."""

    runs: Sequence[Run]
    tasks: int
    results: Table
    steps: Table


def compare(runs: Sequence[Run], tasks: int) -> Comparison:
    """Every run on the same new tasks."""
    problem = runs[0].config.problem
    found = [evaluate(run.load(), problem, tasks=tasks).summary() for run in runs]
    best = (min if problem.metric == "mse" else max)(summary[problem.metric] for summary in found)
    rows = [
        Row(_cells(name, run, summary), emphasis=len(runs) > 1 and summary[problem.metric] == best)
        for name, run, summary in zip(labels(runs), runs, found, strict=True)
    ]
    header = ("run", "before", "after", "worst task", "put back", "the paper")
    title = f"{problem.label}: {_unit(problem.metric)}"
    results = Table(title, header, rows, _notes(found[0], problem.metric))
    return Comparison(runs, tasks, results, _per_step(labels(runs), found, problem.metric))


def _cells(name: str, run: Run, summary: dict[str, Any]) -> tuple[str, ...]:
    metric = run.config.problem.metric
    return (
        name,
        _number(summary[f"{metric}_per_step"][0], metric),
        f"{_number(summary[metric], metric)} ± {_number(summary[f'{metric}_ci95'], metric)}",
        _number(summary["mse_max" if metric == "mse" else "accuracy_min"], metric),
        f"{100 * summary['strayed']:.2f} %" if run.config.training.guard else Remark("no guard"),
        printed(run),
    )


def _per_step(names: Sequence[str], found: Sequence[dict[str, Any]], metric: str) -> Table:
    paths = [summary[f"{metric}_per_step"] for summary in found]
    most = max(map(len, paths))
    rows = [
        Row((name, *(_number(value, metric) for value in path), *[NOTHING] * (most - len(path))))
        for name, path in zip(names, paths, strict=True)
    ]
    return Table(f"After each inner step: {_unit(metric)}", ("run", *map(str, range(most))), rows)


def _notes(summary: dict[str, Any], metric: str) -> list[str]:
    """How it was evaluated."""
    notes = [
        f"Before and after adapting to {summary['tasks']:,} new tasks of the {summary['split']} split, the "
        "same for every run: means, with 95 % intervals.",
        "Put back: tasks that the guard returned to an earlier point of their path.",
    ]
    if metric == "accuracy":
        kind = "all queries of a task" if summary["transductive"] else "the support set"
        name = "Transductive" if summary["transductive"] else "Inductive"
        notes.append(f"{name}: batch norm judges queries with the statistics of {kind}.")
    return notes


def _unit(metric: str) -> str:
    return "mean squared error" if metric == "mse" else "accuracy, %"


def _number(value: float, metric: str) -> str:
    return f"{value:.4f}" if metric == "mse" else f"{100 * value:.2f}"


def printed(run: Run) -> str:
    """The paper's number for this problem and method, or a dash."""
    problem = run.config.problem
    if isinstance(problem, Sine):
        return sine_mse(problem.shots, run.config.method)
    if isinstance(problem, Classification):
        return image_accuracy(problem.data, problem.ways, problem.shots, run.config.method)
    return NOTHING
