"""Figures 4, 5 and 6 of the paper and the gradients of section 3.2: the runs they need, and drawing them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from pathaware.core.errors import UsageError
from pathaware.core.learner import require_path
from pathaware.report.figures import fitted_curves, metric_per_step, step_metrics
from pathaware.report.gradient_histograms import gradient_histograms
from pathaware.training.gradient_probe import Histograms
from pathaware.training.meta_training import build
from pathaware.training.provenance import write_record
from pathaware.training.run_folder import Run
from pathaware_research.experiments import Experiment
from pathaware_research.paper.gradient_flow import flow_figure, of_trained, with_constant_skips
from pathaware_research.paper.tables import base, is_imported, sine_experiment

NamedFigures = list[tuple[str, Figure]]
IMAGE_TASKS, IMAGE_STEPS = 20, 10
"""Tasks and inner steps of Section 3.2 on images."""


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper. `draw` takes the trained runs of `experiments` and a folder for records."""

    name: str
    title: str
    experiments: Sequence[Experiment]
    draw: Callable[[Sequence[Run], Path], NamedFigures]


def fig4() -> PaperFigure:
    experiments = [sine_experiment(10, method) for method in ("pamela", "maml", "meta-sgd")]
    return PaperFigure("fig4", "Fig. 4: sine waves fitted to ten points", experiments, _draw_curves)


def fig5() -> PaperFigure:
    experiments = [sine_experiment(10, method) for method in ("pamela", "maml")]
    return PaperFigure("fig5", "Fig. 5: error after every inner step, 100 tasks", experiments, _draw_steps)


def fig6(data: str, name: str = "fig6") -> PaperFigure:
    if not is_imported(data):
        raise UsageError(f"{name}: {data} is not imported; glyphs needs no import", field="data")
    experiments = [
        Experiment(f"{data}-{method}-5shot", _with_histograms(data, method)) for method in ("maml", "pamela")
    ]
    return PaperFigure(
        "fig6", f"Fig. 6: gradients of conv4 over training, {data}", experiments, _draw_histograms
    )


def gradients() -> PaperFigure:
    experiments = [sine_experiment(10, method) for method in ("pamela", "maml")]
    return PaperFigure("gradients", "Section 3.2: gradient norms along the path", experiments, _draw_flow)


def gradients_conv4(data: str) -> PaperFigure:
    """The same for Conv-4, with the runs of Fig. 6; fewer steps and tasks, as images take longer."""
    experiments = fig6(data, "gradients-conv4").experiments[::-1]
    title = f"Section 3.2: gradient norms along the path, {data}"
    draw = functools.partial(_draw_flow, tasks=IMAGE_TASKS, steps=IMAGE_STEPS)
    return PaperFigure("gradients-conv4", title, experiments, draw)


def _with_histograms(data: str, method: str) -> dict[str, dict[str, Any]]:
    tables = base(data, {"name": method})
    return {**tables, "training": {**tables["training"], "histograms": 10 if data == "glyphs" else 200}}


def _draw_curves(runs: Sequence[Run], folder: Path) -> NamedFigures:
    return [("fig4", fitted_curves([(run, run.load("cpu")) for run in runs]))]


def _draw_steps(runs: Sequence[Run], folder: Path) -> NamedFigures:
    trained, problem = [(run, run.load("cpu")) for run in runs], runs[0].config.problem
    measured = step_metrics(trained)
    steps = {
        run.config.method: {
            "iterations": run.config.training.iterations,
            "seed": run.config.training.seed,
            **each.summary(),
        }
        for run, each in zip(runs, measured, strict=True)
    }
    write_record(folder / f"fig5-{problem.label}.json", {"steps": steps, "problem": problem.label})
    return [("fig5", metric_per_step(trained, measured=measured))]


def _draw_histograms(runs: Sequence[Run], folder: Path) -> NamedFigures:
    problem, statistics = runs[0].config.problem, {}
    for run in runs:
        histograms = run.histograms()
        if histograms is None:
            raise UsageError(
                f"{run.folder} was trained without histograms; choose another folder", field="out"
            )
        statistics[run.config.method] = gradient_statistics(histograms)
    origins = {run.config.method: origin(run) for run in runs}
    record = {"gradients": statistics, "problem": problem.label, "runs": origins}
    write_record(folder / f"fig6-{problem.label}.json", record)
    return [("fig6", gradient_histograms(runs))]


def _draw_flow(runs: Sequence[Run], folder: Path, tasks: int = 100, steps: int = 20) -> NamedFigures:
    """Constant skips on an untrained and on a trained initialisation; then the trained runs."""
    config = runs[0].config
    problem, settings = config.problem, config.method_settings
    rate = settings["rate"] * settings.get("q_start", 1.0)
    learner = require_path(runs[0].load("cpu"))
    untrained = require_path(build(config, next(learner.parameters()).device))
    views = {
        "untrained": with_constant_skips(untrained, problem, rate=rate, tasks=tasks, steps=steps),
        f"start of {config.method}": with_constant_skips(
            learner, problem, rate=rate, tasks=tasks, steps=steps
        ),
        "trained": of_trained([(run, run.load("cpu")) for run in runs], tasks=tasks),
    }
    record = {
        "flow": {name: [flow.summary() for flow in flows] for name, flows in views.items()},
        "problem": problem.label,
        "rate": rate,
        "runs": {run.config.method: origin(run) for run in runs},
    }
    write_record(folder / f"gradients-{problem.label}.json", record)
    prefix = "gradients" if problem.regression else "gradients-conv4"
    return [
        (
            f"{prefix}-{name.replace(' ', '-')}",
            flow_figure(flows, f"{problem.label}, {name}: median and quartiles of {tasks} tasks"),
        )
        for name, flows in views.items()
    ]


def origin(run: Run) -> dict[str, Any]:
    """Length, seed, inner steps and width of a run, and the provenance of its training."""
    training = run.config.training
    return {
        "iterations": training.iterations,
        "seed": training.seed,
        "steps": run.config.method_settings["steps"],
        "width": getattr(run.config.problem, "width", None),
        "trained_with": run.provenance(),
    }


def gradient_statistics(histograms: Histograms) -> dict[str, Any]:
    """Mean and largest |gradient| per inner step and of the meta-gradient, early and late in training."""
    tenth = max(1, len(histograms) // 10)
    parts = {"first tenth": slice(0, tenth), "last tenth": slice(-tenth, None)}
    columns = {"mean": torch.stack(histograms.mean), "largest": torch.stack(histograms.largest)}
    medians = {
        name: {what: values[part].quantile(0.5, dim=0).tolist() for what, values in columns.items()}
        for name, part in parts.items()
    }
    return {"of": histograms.of, "snapshots": len(histograms), **medians}
