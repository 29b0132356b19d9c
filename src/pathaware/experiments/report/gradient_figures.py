"""The paper's Fig. 6: how inner gradients and meta-gradients were spread while training went on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from torch import Tensor

from pathaware.experiments.report.gradient_flow import QUARTILES, Flow
from pathaware.experiments.report.style import TRUTH, styled
from pathaware.training.gradient_probe import edges
from pathaware.training.run_folder import Run

ROWS, COLUMNS = 96, 120
"""Cells of a panel, at most: more than the eye tells apart, few enough for each to hold some values."""


@dataclass(frozen=True)
class Scale:
    """A vertical axis: linear up to ±`middle`, logarithmic from there to ±`reach`."""

    middle: float
    reach: float

    @classmethod
    def of(cls, counts: Tensor) -> Scale:
        """For the gradients counted, `[…, BINS]`: four fifths in the linear part, and nearly all in sight.

        Zeros are left out; units that are off have many of those.
        """
        both = counts.flatten(0, -2).sum(0).double()
        size = (both + both.flip(0))[len(both) // 2 + 1 :].cumsum(0)
        ends = edges()[len(both) // 2 + 2 :]
        middle, reach = (float(ends[int((size < share * size[-1]).sum())]) for share in (0.8, 0.9995))
        return cls(middle, reach)

    def cells(self) -> Tensor:
        """The edges of the panel's cells, equally far apart on this axis: `[ROWS + 1]`."""
        bound = math.asinh(self.reach / self.middle)
        return self.middle * torch.linspace(-bound, bound, ROWS + 1, dtype=torch.float64).sinh()

    def apply(self, axes: Axes, *, labelled: bool) -> None:
        largest = max(m * 10.0**k for k in range(-9, 4) for m in (1, 2, 5) if m * 10.0**k < self.reach)
        marks = [mark for mark in (largest / 10, largest) if mark > self.middle]
        ticks = [*(-mark for mark in reversed(marks)), 0.0, *marks]
        axes.set_yscale("asinh", linear_width=self.middle)
        axes.set_ylim(-self.reach, self.reach)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks] if labelled else [""] * len(ticks))


def gradient_histograms(runs: Sequence[Run]) -> Figure:
    """Fig. 6. A row for each run that kept histograms, a column for each inner step, then the meta-gradient.

    All inner steps of all runs share one scale, and all meta-gradients another. The stronger the blue, the
    more gradients there are, in logarithmic measure.
    """
    kept = [(run.config.method, found) for run in runs if (found := run.histograms()) is not None]
    counts = [torch.stack(found.counts) for _, found in kept]
    steps = max(each.shape[1] for each in counts) - 1
    inner = Scale.of(torch.cat([each[:, :-1].flatten(0, 1) for each in counts]))
    meta = Scale.of(torch.cat([each[:, -1] for each in counts]))
    with styled():
        size = (1.9 * (steps + 1) + 1, 1.9 * len(kept) + 0.6)
        figure, grid = plt.subplots(len(kept), steps + 1, figsize=size, squeeze=False)
        for line, (name, found), each in zip(grid, kept, counts, strict=True):
            for j, axes in enumerate(line[:steps]):
                if j < each.shape[1] - 1:
                    _panel(axes, found.iterations, each[:, j], inner)
                    inner.apply(axes, labelled=j == 0)
                else:
                    axes.set_axis_off()
            _panel(line[-1], found.iterations, each[:, -1], meta)
            meta.apply(line[-1], labelled=True)
            line[0].set_ylabel(f"{name}, {found.of}")
        for j, axes in enumerate(grid[0]):
            axes.set_title(f"step {j + 1}" if j < steps else "meta-gradient", size=10)
        figure.supxlabel("meta-iterations", size=10)
    return figure


def _panel(axes: Axes, iterations: list[int], counts: Tensor, scale: Scale) -> None:
    """One gradient's histograms side by side, from `counts [snapshots, BINS]`."""
    every = math.ceil(len(iterations) / COLUMNS)
    merged = torch.stack([part.double().sum(0) for part in counts.split(every)])
    gap = iterations[1] - iterations[0] if len(iterations) > 1 else 1
    times = [*iterations[::every], iterations[-1] + gap]
    density = _shares(merged, scale.cells())
    norm = LogNorm(
        vmin=0.02 / ROWS, vmax=10 / ROWS
    )  # where all cells are equal, each has a share of 1 / ROWS
    shown = np.ma.masked_equal(density.T.numpy(), 0)
    axes.pcolormesh(times, scale.cells().numpy(), shown, cmap="Blues", norm=norm, rasterized=True)
    axes.grid(False)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(2))


def _shares(counts: Tensor, cells: Tensor) -> Tensor:
    """What share of `counts [columns, BINS]` lies between neighbouring `cells`: `[columns, ROWS]`.

    Within a bin values are taken to be spread evenly.
    """
    ends, below = edges().numpy(), torch.nn.functional.pad(counts.cumsum(1), (1, 0)).numpy()
    total = counts.sum(1, keepdim=True).clamp(min=1)
    found = np.stack([np.interp(cells.numpy(), ends, each) for each in below])
    return torch.from_numpy(found).diff(dim=1) / total


# The paper's section 3.2 as a figure: how much of the meta-gradient arrives at the start.


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
