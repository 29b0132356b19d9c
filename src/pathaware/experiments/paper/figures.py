"""Figures 4, 5 and 6 and the gradients of section 3.2: what each needs trained, and how it is drawn."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from pathaware.core.errors import UsageError
from pathaware.core.learner import require_path
from pathaware.experiments.paper.tables import base, is_imported, sine_experiment
from pathaware.experiments.report.gradient_figures import flow_figure, gradient_histograms
from pathaware.experiments.report.gradient_flow import Flow, controlled, of_trained
from pathaware.experiments.report.path_figures import along_the_path, fitted_curves
from pathaware.experiments.run_store import Experiment
from pathaware.training.gradient_probe import Histograms
from pathaware.training.provenance import commit, environment
from pathaware.training.run_folder import Run
from pathaware.training.trainer import build

Drawn = list[tuple[str, Figure]]


@dataclass(frozen=True)
class Picture:
    """A figure of the paper; `draw` takes the trained runs, in the order of `trials`, and a data folder."""

    name: str
    title: str
    trials: Sequence[Experiment]
    draw: Callable[[Sequence[Run], Path], Drawn]


def fig4() -> Picture:
    trials = [sine_experiment(10, method) for method in ("pamela", "maml", "meta-sgd")]
    return Picture("fig4", "Fig. 4: waves fitted to ten points", trials, _curves)


def fig5() -> Picture:
    trials = [sine_experiment(10, method) for method in ("pamela", "maml")]
    return Picture("fig5", "Fig. 5: error after every inner step, 100 tasks", trials, _along)


def fig6(data: str) -> Picture:
    if not is_imported(data):
        raise UsageError(f"fig6: {data} is not imported; --data names another set, such as glyphs")
    trials = [Experiment(f"{data}-{method}-5shot", _watched(data, method)) for method in ("maml", "pamela")]
    return Picture("fig6", f"Fig. 6: gradients of conv4 over training, {data}", trials, _histograms)


def gradients() -> Picture:
    trials = [sine_experiment(10, method) for method in ("pamela", "maml")]
    return Picture("gradients", "Section 3.2: what comes back of the gradient", trials, _flow)


def _watched(data: str, method: str) -> dict[str, dict[str, Any]]:
    tables = base(data, {"name": method})
    return {**tables, "training": {**tables["training"], "histograms": 10 if data == "glyphs" else 200}}


def _curves(runs: Sequence[Run], folder: Path) -> Drawn:
    return [("fig4", fitted_curves([(run, run.load("cpu")) for run in runs]))]


def _along(runs: Sequence[Run], folder: Path) -> Drawn:
    return [("fig5", along_the_path([(run, run.load("cpu")) for run in runs], tasks=100))]


def _histograms(runs: Sequence[Run], folder: Path) -> Drawn:
    problem, gradients = runs[0].config.problem, {}
    for run in runs:
        found = run.histograms()
        if found is None:
            raise UsageError(f"fig6: {run.folder} was trained without histograms; choose another --out")
        gradients[run.config.method] = spread(found)
    _write(folder / f"fig6-{problem.label}.json", {"gradients": gradients, "problem": problem.label})
    return [("fig6", gradient_histograms(runs))]


def _flow(runs: Sequence[Run], folder: Path, tasks: int = 100) -> Drawn:
    """The skip alone at chosen values, on a fresh and on a trained start; then the trained runs."""
    first = runs[0]
    learner, problem, rate = (
        require_path(first.load("cpu")),
        first.config.problem,
        first.config.method_settings["rate"],
    )
    fresh = require_path(build(first.config, next(learner.parameters()).device))
    views: dict[str, list[Flow]] = {
        "untrained": controlled(fresh, problem, rate=rate, tasks=tasks),
        f"start of {first.config.method}": controlled(learner, problem, rate=rate, tasks=tasks),
        "trained": of_trained([(run, run.load("cpu")) for run in runs], tasks=tasks),
    }
    flow = {name: [flow.summary() for flow in flows] for name, flows in views.items()}
    about = {"problem": problem.label, "rate": rate}
    _write(folder / f"gradients-{problem.label}.json", {"flow": flow, **about})
    return [
        (
            f"gradients-{name.replace(' ', '-')}",
            flow_figure(flows, f"{problem.label}, {name}: median and middle half of {tasks} tasks"),
        )
        for name, flows in views.items()
    ]


def spread(histograms: Histograms) -> dict[str, Any]:
    """Mean and largest |gradient| of each inner step and then of the meta-gradient, early and late."""
    tenth = max(1, len(histograms) // 10)
    parts = {"first tenth": slice(0, tenth), "last tenth": slice(-tenth, None)}
    columns = {"mean": torch.stack(histograms.mean), "largest": torch.stack(histograms.largest)}
    medians = {
        name: {what: values[part].median(0).values.tolist() for what, values in columns.items()}
        for name, part in parts.items()
    }
    return {"of": histograms.of, "snapshots": len(histograms), **medians}


def _write(path: Path, record: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = {**record, "commit": commit(), "environment": environment()}
    path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
