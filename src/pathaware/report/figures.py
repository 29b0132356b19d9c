"""Figures of trained runs: predictions, metric per step, learned coefficients, gradients, training curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pathaware.core.few_shot import FewShotLearner, part_of
from pathaware.core.parameters import Layout
from pathaware.core.rule import Rule
from pathaware.core.seeding import generator
from pathaware.data.store import counted
from pathaware.report.gradient_histograms import gradient_histograms
from pathaware.report.style import INK, TRUTH, labels, run_styles, styled, subplots
from pathaware.training.evaluation import evaluate
from pathaware.training.metric import Reliability, reliability
from pathaware.training.run_folder import Run

Trained = tuple[Run, FewShotLearner]
QUANTILES = (0.05, 0.25, 0.75, 0.95)


def figures(runs: Sequence[Run], tasks: int = 100) -> Iterator[tuple[str, str, Figure]]:
    """Yield file name, caption and figure for runs on the same problem, evaluated on `tasks` test tasks."""
    problem = runs[0].config.problem
    # Sine waves are sampled and drawn on the CPU; images are evaluated faster on a GPU.
    trained = [(run, run.load("cpu" if problem.regression else "auto")) for run in runs]
    if problem.regression:
        yield (
            "curves",
            "Predictions after adaptation to a few points of a new sine wave.",
            fitted_curves(trained),
        )
    caption = "Results on new tasks after each inner step."
    yield f"{problem.metric.name}-per-step", caption, metric_per_step(trained, tasks)
    rules = [(name, part_of(x, Rule)) for name, (_, x) in zip(labels(runs), trained, strict=True)]
    learned = [(n, r) for n, r in rules if r is not None and any(c.groups for c in r.coefficients().values())]
    for name, rule in learned:
        caption = (
            f"Learned coefficients of {name}, averaged over each layer. Columns: inner steps. Rows: layers."
        )
        yield "trend" if len(learned) == 1 else f"trend-{Path(name).name}", caption, coefficients(rule)
    if any(run.histograms() for run in runs):
        caption = "Histograms of one layer's gradients during training. Darker blue: higher count."
        yield "gradients", caption, gradient_histograms(runs)
    if not problem.regression:
        caption = "Left: accuracy by confidence. Right: error rate of the most confident predictions."
        yield "calibration", caption, calibration_figure(_reliabilities(trained, tasks))
    yield "training", "Training curves.", training_curves(runs)


def _reliabilities(runs: Sequence[Trained], tasks: int) -> dict[str, Reliability]:
    found = {}
    for name, (run, learner) in zip(labels([run for run, _ in runs]), runs, strict=True):
        result = evaluate(learner, run.config.problem, tasks=tasks, queries="alone", keep_outputs=True)
        assert result.outputs is not None
        assert result.targets is not None
        found[name] = reliability(result.outputs, result.targets)
    return found


def calibration_figure(found: Mapping[str, Reliability]) -> Figure:
    """A reliability diagram and a risk-coverage curve, with one line per name."""
    with styled():
        figure, (left, right) = subplots(1, 2, (9, 3.6))
        left.plot([0, 1], [0, 1], color=TRUTH, linewidth=1)
        for name, each in found.items():
            confidence, accuracy, _ = zip(*each.bins, strict=True)
            left.plot(confidence, accuracy, marker="o", label=f"{name}, error {100 * each.error:.1f} %")
            coverage, risk = zip(*each.risk_coverage, strict=True)
            right.plot(coverage, risk, label=name)
        left.set(title="Reliability", xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
        right.set(title="Risk and coverage", xlabel="coverage", ylabel="risk", xlim=(0, 1))
        right.set_ylim(bottom=0)
        left.legend()
    return figure


@torch.no_grad()
def fitted_curves(runs: Sequence[Trained], seed: int = 10) -> Figure:
    """Fig. 4: predictions from the same support set. Left: every run. Right: the first run, step by step."""
    shown, learner = runs[0]
    styles = run_styles([run for run, _ in runs])
    source = shown.config.problem.tasks("test", "cpu", torch.float32)
    episodes = source.sample(1, generator(seed, "figure"))
    x, y = episodes.query_x[0, :, 0], episodes.query_y[0, :, 0]
    support = episodes.support_x[0, :, 0], episodes.support_y[0, :, 0]

    def predictions(learner: FewShotLearner) -> list[Tensor]:
        steps = learner.predictions_per_step(episodes.support_x, episodes.support_y, episodes.query_x)
        return [output[0, :, 0] for output in steps.outputs]

    with styled(font=11):
        figure, (left, right) = subplots(1, 2, (7, 4.3), sharey=True)
        for axes in (left, right):
            axes.plot(x, y, color=TRUTH, linestyle="--", label="true wave" if axes is left else None)
            axes.set_xlabel("x")
        for (_, each), (label, shade) in zip(runs, styles, strict=True):
            left.plot(x, predictions(each)[-1], color=shade, label=label)
        left.set(ylabel="y", title="after adaptation")
        curves = predictions(learner)
        shades = matplotlib.colormaps["viridis_r"](torch.linspace(0.05, 0.95, len(curves)).numpy())
        for j, (curve, shade) in enumerate(zip(curves, shades, strict=True)):
            right.plot(x, curve, color=shade, label=f"{j} steps" if j != 1 else "1 step")
        right.set_title(f"{styles[0][0]}, step by step")
        for axes in (left, right):
            name = "support points" if axes is left else None
            axes.plot(*support, "o", color=INK, markersize=5, label=name, zorder=5)
            axes.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16), columnspacing=1)
    return figure


@dataclass(frozen=True)
class StepMetric:
    """The metric of test tasks after every inner step: mean `[steps + 1]` and `QUANTILES`, in its unit."""

    tasks: int
    mean: Tensor
    quantiles: Tensor

    def summary(self) -> dict[str, Any]:
        named = {
            f"q{100 * q:02.0f}": each.tolist() for q, each in zip(QUANTILES, self.quantiles, strict=True)
        }
        return {"tasks": self.tasks, "mean": self.mean.tolist(), **named}


def step_metrics(runs: Sequence[Trained], tasks: int = 100) -> list[StepMetric]:
    """Evaluate every run on the same test tasks."""
    found = []
    for run, learner in runs:
        problem = run.config.problem
        values = problem.metric.scale * evaluate(learner, problem, tasks=tasks).values.double()
        found.append(StepMetric(tasks, values.mean(0), values.quantile(values.new_tensor(QUANTILES), dim=0)))
    return found


def metric_per_step(
    runs: Sequence[Trained], tasks: int = 100, measured: Sequence[StepMetric] | None = None
) -> Figure:
    """Fig. 5: the metric after every inner step: mean and central 50 % and 90 % of test tasks.

    `measured` is the result of `step_metrics`, if it is known already.
    """
    metric = runs[0][0].config.problem.metric
    measured = measured or step_metrics(runs, tasks)
    with styled():
        figure, axes = subplots(1, 1, (6, 4))
        longest = 0
        for found, (label, shade) in zip(measured, run_styles([run for run, _ in runs]), strict=True):
            low, quarter, three, high = found.quantiles
            steps = range(len(found.mean))
            longest = max(longest, len(steps))
            axes.fill_between(steps, low, high, color=shade, alpha=0.12, linewidth=0)
            axes.fill_between(steps, quarter, three, color=shade, alpha=0.25, linewidth=0)
            axes.plot(steps, found.mean, color=shade, marker="o", markersize=4, label=label)
        scale = "log" if metric.lower_is_better else "linear"
        axes.set(xlabel="inner steps", ylabel=metric.title, yscale=scale)
        axes.set_xticks(range(longest))
        axes.set_title(f"{counted(measured[0].tasks, 'new task')}: mean, central 50 % and 90 %")
        axes.legend()
    return figure


def layer_means(layout: Layout, values: Tensor) -> Tensor:
    """The mean over the parameters of each layer: `[rows, D]` → `[rows, layers]`."""
    index, layers = layout.index("layer")
    total = torch.zeros(len(values), layers, dtype=values.dtype).index_add_(1, index, values)
    return total / index.bincount(minlength=layers)


@torch.no_grad()
def coefficients(rule: Rule) -> Figure:
    """Heat maps of a rule's learned coefficients, and of the absolute value of learned step sizes."""
    panels = []
    for name, each in rule.coefficients().items():
        if each.groups is None or not len(getattr(rule, name)):
            continue
        values: Tensor = each.groups(getattr(rule, name)).cpu()
        steps = [str(j) for j in each.steps] or ["all"]
        if each.step_size is not None:
            panels.append((f"mean |{name.upper()}|", values.abs(), steps, "viridis"))
        panels.append((f"mean {name.upper()}", values, steps, "RdBu_r"))
    layers = rule.layout.layers
    with styled():
        size = (2.6 * len(panels) + 0.4, 0.5 * len(layers) + 1)
        figure, grid = subplots(1, len(panels), size, squeeze=False, sharey=True)
        for axes, (title, values, steps, cmap) in zip(grid[0], panels, strict=True):
            _heat_map(axes, title, layer_means(rule.layout, values).T, layers, steps, cmap)
    return figure


def _heat_map(axes: Axes, title: str, values: Tensor, layers: list[str], steps: list[str], cmap: str) -> None:
    bound = float(values.abs().max()) or 1.0
    lowest = 0 if cmap == "viridis" else -bound
    image = axes.imshow(values.numpy(), cmap=cmap, vmin=lowest, vmax=bound, aspect="auto")
    axes.set(title=title, xlabel="step j", xticks=range(len(steps)), yticks=range(len(layers)))
    axes.set_xticklabels(steps)
    axes.set_yticklabels([f"layer {name}" if name.isdigit() else name for name in layers])
    axes.grid(False)
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            red, green, blue, _ = image.to_rgba(value.numpy())
            shade = "k" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "w"
            axes.text(column, row, f"{value:.3f}", ha="center", va="center", size=8, color=shade)


def training_curves(runs: Sequence[Run]) -> Figure:
    """Meta-loss, norm of the meta-gradient and, if any run was validated, the validation metric."""
    metric = runs[0].config.problem.metric
    panels = [
        ("loss", "meta-loss", "log"),
        ("norm", "norm of the meta-gradient", "log"),
        ("validation", f"validation {metric.name}", "log" if metric.lower_is_better else "linear"),
    ]
    metrics = [list(run.metrics()) for run in runs]
    if not any(row["validation"] is not None for rows in metrics for row in rows):
        panels.pop()
    with styled():
        figure, grid = subplots(1, len(panels), (1 + 4 * len(panels), 3.6))
        for axes, (key, title, scale) in zip(grid, panels, strict=True):
            for rows, (label, shade) in zip(metrics, run_styles(runs), strict=True):
                known = [row for row in rows if row[key] is not None]
                iterations, values = [row["iteration"] for row in known], [row[key] for row in known]
                marker = "." if key == "validation" else None
                axes.plot(iterations, values, color=shade, label=label, linewidth=1, marker=marker)
            axes.set(xlabel="meta-iterations", title=title, yscale=scale)
            axes.locator_params(axis="x", nbins=5)
        grid[0].legend()
    return figure
