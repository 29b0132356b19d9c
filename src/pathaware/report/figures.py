"""All figures that a set of runs allows, by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from pathaware.learner import MetaLearner
from pathaware.report.sine_figures import fitted_curves, loss_along_the_path
from pathaware.report.trend_figures import training_curves, trend
from pathaware.rules import Pamela
from pathaware.training.run import Run


def figures(runs: Sequence[tuple[Run, MetaLearner]]) -> Iterator[tuple[str, str, Figure]]:
    """File name, caption and figure, one after another."""
    if all(run.config.problem.metric == "mse" for run, _ in runs):
        yield "curves", "Curves fitted to a few points of a new wave.", fitted_curves(runs)
        yield "loss-per-step", "Error along the path of adaptation.", loss_along_the_path(runs)
    for run, learner in runs:
        if isinstance(learner.rule, Pamela):
            caption = f"What {run.config.method} learned about how to move: steps across, layers down."
            yield "trend", caption, trend(learner.rule)
    yield "training", "Meta-loss while training.", training_curves([run for run, _ in runs])
