"""The learning trend made visible: what Q and P became, and how training went."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pathaware.layout import Layout
from pathaware.report.style import colour, styled
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
    image = axes.imshow(values, cmap=cmap, vmin=0 if cmap == "viridis" else -bound, vmax=bound, aspect="auto")
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
    """Meta-loss over training."""
    with styled():
        figure, axes = plt.subplots(figsize=(6, 4))
        for run in runs:
            rows = list(run.metrics())
            iterations = [row["iteration"] for row in rows]
            losses = [row["loss"] for row in rows]
            axes.plot(iterations, losses, color=colour(run.config.method), label=run.config.method)
        axes.set(xlabel="meta-iterations", ylabel="meta-loss", yscale="log", title="training")
        axes.legend()
    return figure
