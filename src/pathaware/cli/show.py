"""What the commands print."""

from __future__ import annotations

import json as jsonlib
from typing import Any

from pathaware.training.evaluation import Evaluation
from pathaware.training.run import Run


def print_evaluation(run: Run, evaluation: Evaluation, *, json: bool) -> None:
    """A table for a person, or one JSON object for a script."""
    summary = evaluation.summary()
    if json:
        print(jsonlib.dumps({"method": run.config.method, "problem": run.config.problem.name, **summary}))
        return
    from rich.console import Console
    from rich.table import Table

    metric = evaluation.metric
    table = Table("after step", *(str(j) for j in range(len(summary[f"{metric}_per_step"]))))
    table.add_row(metric, *(f"{value:.4f}" for value in summary[f"{metric}_per_step"]))
    console = Console()
    console.print(table)
    console.print(headline(summary, metric), highlight=False, soft_wrap=True)


def headline(summary: dict[str, Any], metric: str) -> str:
    """The result in a sentence, with what it depends on."""
    worst = summary[f"{metric}_{'max' if metric == 'mse' else 'min'}"]
    text = f"{metric} {summary[metric]:.4f} ± {summary[f'{metric}_ci95']:.4f} over {summary['tasks']} "
    text += (
        f"{summary['split']} tasks, worst {worst:.3g}, {100 * summary['strayed']:.2f} % put back by the guard"
    )
    if metric == "accuracy":
        text += ", transductive" if summary["transductive"] else ", inductive"
    return text
