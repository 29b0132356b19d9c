"""All figures that a set of runs allows, by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from pathaware.experiments.report.gradient_figures import gradient_histograms
from pathaware.experiments.report.path_figures import along_the_path, fitted_curves, training_curves, trend
from pathaware.experiments.report.style import labels
from pathaware.methods.pamela import Pamela
from pathaware.training.run_folder import Run


def figures(opened: Sequence[Run], tasks: int = 100) -> Iterator[tuple[str, str, Figure]]:
    """File name, caption and figure, one after another, for runs on the same problem; `tasks` are judged."""
    problem = opened[0].config.problem
    # Waves are drawn where they are fitted, on the CPU; images are better judged on a GPU.
    runs = [(run, run.load("cpu" if problem.regression else "auto")) for run in opened]
    if problem.regression:
        yield "curves", "Curves fitted to a few points of a new wave.", fitted_curves(runs)
    yield f"{problem.metric.name}-per-step", "How adaptation goes, step by step.", along_the_path(runs, tasks)
    rules = [(n, getattr(x, "rule", None)) for n, (_, x) in zip(labels(opened), runs, strict=True)]
    trends = [(n, rule) for n, rule in rules if isinstance(rule, Pamela)]
    for label, rule in trends:
        caption = f"What {label} learned about how to move: steps across, layers down."
        yield "trend" if len(trends) == 1 else f"trend-{Path(label).name}", caption, trend(rule)
    if any(run.histograms() for run in opened):
        caption = "How the gradients of one layer were spread while training; the bluer, the more of them."
        yield "gradients", caption, gradient_histograms(opened)
    yield "training", "How training went.", training_curves(opened)
