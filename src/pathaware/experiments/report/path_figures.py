"""What adaptation does: the paper's Fig. 4 (fitted curves) and Fig. 5 (error along the path)."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pathaware.core.learner import FewShotLearner
from pathaware.core.parameters import Layout
from pathaware.core.seeding import generator
from pathaware.experiments.report.style import INK, TRUTH, looks, styled
from pathaware.methods.pamela import Pamela
from pathaware.training.evaluation import evaluate
from pathaware.training.run_folder import Run

Trained = tuple[Run, FewShotLearner]
QUANTILES = (0.05, 0.25, 0.75, 0.95)


@torch.no_grad()
def fitted_curves(runs: Sequence[Trained], seed: int = 10) -> Figure:
    """Fig. 4. Left: what each method makes of the same few points. Right: the first one, step by step."""
    shown, learner = runs[0]
    named = looks([run for run, _ in runs])
    source = shown.config.problem.tasks("test", "cpu", torch.float32)
    episodes = source.sample(1, generator(seed, "figure"))
    x, y = episodes.query_x[0, :, 0], episodes.query_y[0, :, 0]
    support = episodes.support_x[0, :, 0], episodes.support_y[0, :, 0]

    def fit(learner: FewShotLearner) -> list[torch.Tensor]:
        answers = learner.predictions_per_step(episodes.support_x, episodes.support_y, episodes.query_x)
        return [output[0, :, 0] for output in answers.outputs]

    with styled():
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
        for axes in (left, right):
            axes.plot(x, y, color=TRUTH, linestyle="--", label="true wave")
            axes.set_xlabel("x")
        for (_, each), (label, shade) in zip(runs, named, strict=True):
            left.plot(x, fit(each)[-1], color=shade, label=label)
        left.set(ylabel="y", title="after adaptation")
        curves = fit(learner)
        shades = plt.get_cmap("viridis_r")(torch.linspace(0.05, 0.95, len(curves)).numpy())
        for j, (curve, shade) in enumerate(zip(curves, shades, strict=True)):
            right.plot(x, curve, color=shade, label=f"{j} steps" if j != 1 else "1 step")
        right.set_title(f"{named[0][0]}, step by step")
        for axes in (left, right):
            axes.plot(*support, "o", color=INK, markersize=4, label="support points", zorder=5)
            axes.legend(fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return figure


def along_the_path(runs: Sequence[Trained], tasks: int = 100) -> Figure:
    """Fig. 5. The metric after every inner step: its mean, the middle half and middle 90 % of new tasks."""
    metric = runs[0][0].config.problem.metric
    with styled():
        figure, axes = plt.subplots(figsize=(6, 4))
        longest = 0
        for (run, learner), (label, shade) in zip(runs, looks([run for run, _ in runs]), strict=True):
            values = evaluate(learner, run.config.problem, tasks=tasks).values.double()
            low, quarter, three, high = values.quantile(values.new_tensor(QUANTILES), dim=0)
            steps = range(values.shape[1])
            longest = max(longest, len(steps))
            axes.fill_between(steps, low, high, color=shade, alpha=0.12, linewidth=0)
            axes.fill_between(steps, quarter, three, color=shade, alpha=0.25, linewidth=0)
            axes.plot(steps, values.mean(0), color=shade, marker="o", markersize=4, label=label)
        axes.set(
            xlabel="inner steps", ylabel=metric.name, yscale="log" if metric.lower_is_better else "linear"
        )
        axes.set_xticks(range(longest))
        axes.set_title(f"{tasks} new tasks: mean, middle 50 % and 90 %")
        axes.legend()
    return figure


# The learning trend made visible: what Q and P became, and how training went.


def layer_means(layout: Layout, values: torch.Tensor) -> torch.Tensor:
    """Mean over each layer's parameters: `[rows, D]` → `[rows, layers]`."""
    index, layers = layout.index("layer")
    total = torch.zeros(len(values), layers, dtype=values.dtype).index_add_(1, index, values)
    return total / index.bincount(minlength=layers)


@torch.no_grad()
def trend(rule: Pamela) -> Figure:
    """Heat maps over steps and layers: mean |Q| (how far), mean Q (which way) and P (how much of before)."""
    layout = rule.layout
    q, p = rule.q_groups(rule.q).cpu(), rule.p_groups(rule.p).cpu()
    steps = [str(j) for j in range(len(q))] if len(q) > 1 else ["all"]
    panels = [
        ("mean |Q|", layer_means(layout, q.abs()), steps, "viridis"),
        ("mean Q", layer_means(layout, q), steps, "RdBu_r"),
    ]
    if len(p):
        panels.append(("P", layer_means(layout, p), [str(j) for j in rule.skips], "RdBu_r"))
    size = (4.2 * len(panels), 0.6 * len(layout.layers) + 1.6)
    with styled():
        figure, axes = plt.subplots(1, len(panels), figsize=size)
        for ax, (title, values, rows, cmap) in zip(axes, panels, strict=True):
            _heat_map(ax, title, values.T, layout.layers, rows, cmap)
    return figure


def _heat_map(
    axes: Axes, title: str, values: torch.Tensor, layers: list[str], steps: list[str], cmap: str
) -> None:
    bound = float(values.abs().max()) or 1.0
    image = axes.imshow(
        values.numpy(), cmap=cmap, vmin=0 if cmap == "viridis" else -bound, vmax=bound, aspect="auto"
    )
    axes.set(title=title, xlabel="step j", xticks=range(len(steps)), yticks=range(len(layers)))
    axes.set_xticklabels(steps)
    axes.set_yticklabels([f"layer {name}" if name.isdigit() else name for name in layers])
    axes.grid(False)
    for (row, column), value in zip(
        torch.cartesian_prod(*(torch.arange(n) for n in values.shape)).tolist(), values.flatten(), strict=True
    ):
        red, green, blue, _ = image.to_rgba(value.numpy())
        light = 0.3 * red + 0.59 * green + 0.11 * blue
        axes.text(
            column, row, f"{value:.3f}", ha="center", va="center", size=8, color="k" if light > 0.5 else "w"
        )
    axes.figure.colorbar(image, ax=axes, shrink=0.85)


def training_curves(runs: Sequence[Run]) -> Figure:
    """Meta-loss, norm of the meta-gradient, and validation where it was taken."""
    metric = runs[0].config.problem.metric
    panels = [
        ("loss", "meta-loss"),
        ("norm", "norm of the meta-gradient"),
        ("validation", f"validation {metric.name}"),
    ]
    metrics = [list(run.metrics()) for run in runs]
    if not any(row["validation"] is not None for rows in metrics for row in rows):
        panels.pop()
    with styled():
        figure, grid = plt.subplots(1, len(panels), figsize=(1 + 4 * len(panels), 3.6))
        for axes, (key, title) in zip(grid, panels, strict=True):
            for rows, (label, shade) in zip(metrics, looks(runs), strict=True):
                taken = [row for row in rows if row[key] is not None]
                iterations, values = [row["iteration"] for row in taken], [row[key] for row in taken]
                mark = "." if key == "validation" else None
                axes.plot(iterations, values, color=shade, label=label, linewidth=1, marker=mark)
            axes.set(
                xlabel="meta-iterations",
                title=title,
                yscale="linear" if title == "validation accuracy" else "log",
            )
            axes.locator_params(axis="x", nbins=5)
        grid[0].legend()
    return figure
