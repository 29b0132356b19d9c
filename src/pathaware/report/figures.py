"""All figures that a set of runs allows, by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from pathaware.report.gradient_figures import gradient_histograms
from pathaware.report.looks import labels
from pathaware.report.path_figures import Trained, along_the_path, fitted_curves
from pathaware.report.trend_figures import training_curves, trend
from pathaware.rules import Pamela


def figures(runs: Sequence[Trained]) -> Iterator[tuple[str, str, Figure]]:
    """File name, caption and figure, one after another, for runs on the same problem."""
    metric = runs[0][0].config.problem.metric
    if metric == "mse":
        yield "curves", "Curves fitted to a few points of a new wave.", fitted_curves(runs)
    yield f"{metric}-per-step", "How adaptation goes, step by step.", along_the_path(runs)
    for (_, learner), label in zip(runs, labels([run for run, _ in runs]), strict=True):
        if isinstance(learner.rule, Pamela):
            caption = f"What {label} learned about how to move: steps across, layers down."
            yield "trend", caption, trend(learner.rule)
    if any(run.histograms() for run, _ in runs):
        caption = "How the gradients of one layer were spread while training; the bluer, the more of them."
        yield "gradients", caption, gradient_histograms([run for run, _ in runs])
    yield "training", "How training went.", training_curves([run for run, _ in runs])
