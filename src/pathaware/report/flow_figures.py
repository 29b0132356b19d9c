"""The paper's section 3.2 as a figure: how much of the meta-gradient arrives at the start."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from pathaware.report.gradient_flow import QUARTILES, Flow
from pathaware.report.style import TRUTH, styled

WIDE = 20
"""From this ratio of largest to smallest on, an axis is logarithmic."""


def flow_figure(flows: Sequence[Flow], title: str) -> Figure:
    """Medians over tasks: norm at the start and share of the end's after n steps, with the middle half of all
    tasks; and the share against the loss reached, which tells a way around from a slower descent."""
    shades = plt.get_cmap("viridis")(torch.linspace(0.0, 0.85, len(flows)).numpy())
    with styled():
        figure, (norm, share, progress) = plt.subplots(1, 3, figsize=(13, 3.9))
        for flow, shade in zip(flows, shades, strict=True):
            _along_steps(norm, flow.start, shade, flow.label)
            _along_steps(share, flow.share, shade, flow.label)
            progress.plot(_median(flow.loss), _median(flow.share), "o-", color=shade, markersize=3)
        norm.set(title="‖∇θ₀ L(θₙ)‖", xlabel="inner steps n")
        share.set(title="‖∇θ₀ L(θₙ)‖ / ‖∇θₙ L(θₙ)‖", xlabel="inner steps n")
        progress.set(title="the same, by the loss reached", xlabel="query loss at θₙ")
        for axes in (norm, share):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes in (share, progress):
            axes.axhline(1, color=TRUTH, linestyle="--", linewidth=1, zorder=0)
        for axes in (norm, share, progress):
            low, high = axes.dataLim.intervaly
            axes.set(yscale="log") if high > WIDE * low else axes.set_ylim(bottom=0)
        low, high = progress.dataLim.intervalx
        progress.set_xscale("log" if high > WIDE * low else "linear")
        progress.invert_xaxis()
        figure.legend(
            *norm.get_legend_handles_labels(), loc="outside lower center", ncols=len(flows), fontsize=9
        )
        figure.suptitle(title, size=10)
    return figure


def _along_steps(axes: Axes, values: Tensor, shade: object, label: str) -> None:
    low, middle, high = values.quantile(values.new_tensor(QUARTILES), dim=0).numpy()
    steps = range(1, len(middle) + 1)
    axes.fill_between(steps, low, high, color=shade, alpha=0.1, linewidth=0)
    axes.plot(steps, middle, "o-", color=shade, markersize=3, label=label)


def _median(values: Tensor) -> list[float]:
    medians: list[float] = values.quantile(0.5, dim=0).tolist()
    return medians
