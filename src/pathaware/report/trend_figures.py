"""The learning trend made visible: what Q and P became, and how training went."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pathaware.layout import Layout
from pathaware.report.looks import looks
from pathaware.report.style import styled
from pathaware.rules import Pamela
from pathaware.training.run import Run


def layer_means(layout: Layout, values: torch.Tensor) -> torch.Tensor:
    """Mean over each layer's parameters: `[rows, D]` → `[rows, layers]`."""
    index, layers = layout.index("layer")
    total = torch.zeros(len(values), layers, dtype=values.dtype).index_add_(1, index, values)
    return total / index.bincount(minlength=layers)


@torch.no_grad()
def trend(rule: Pamela) -> Figure:
    """Heat maps over steps and layers: mean |Q| (how far), mean Q (which way) and P (how much of before)."""
    layout = rule.layout
    q, p = rule.spread_q(rule.q).cpu(), rule.spread_p(rule.p).cpu()
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
        ("validation", f"validation {metric}"),
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
