"""Runs on the same problem side by side, and beside what the paper printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pathaware.report.paper import SINE_MSE
from pathaware.training.evaluation import evaluate
from pathaware.training.regression import Sine
from pathaware.training.run import Run


@dataclass(frozen=True)
class Comparison:
    """A table; row `best` has the best result."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    best: int


def compare(runs: Sequence[Run], tasks: int) -> Comparison:
    """Every run on the same new tasks."""
    problem = runs[0].config.problem
    metric, lower = problem.metric, problem.metric == "mse"
    rows, results = [], []
    for run in runs:
        summary = evaluate(run.load(), run.config.problem, tasks=tasks).summary()
        results.append(summary[metric])
        rows.append(
            (
                run.config.method,
                f"{summary[f'{metric}_per_step'][0]:.3f}",
                f"{summary[metric]:.3f} ± {summary[f'{metric}_ci95']:.3f}",
                f"{summary[f'{metric}_max' if lower else f'{metric}_min']:.2f}",
                printed(run),
                f"{run.config.training.iterations:,}",
            )
        )
    header = (
        "method",
        f"{metric} before",
        "after",
        "worst task",
        "paper",
        "iterations",
    )
    title = f"{problem.label}, {tasks:,} new tasks"
    return Comparison(title, header, rows, results.index((min if lower else max)(results)))


def printed(run: Run) -> str:
    """The paper's number for this problem and method, or a dash."""
    problem = run.config.problem
    if not isinstance(problem, Sine):
        return "–"
    found = SINE_MSE.get(problem.shots, {}).get(run.config.method)
    return f"{found[0]:.2f} ± {found[1]:.2f}" if found else "–"
