"""Histograms of gradients over training (Fig. 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from torch import Tensor

from pathaware.report.style import styled, subplots
from pathaware.training.gradient_probe import edges
from pathaware.training.run_folder import Run

ROWS, COLUMNS = 96, 120
"""The largest number of cells in a panel: enough to look smooth, few enough for each to hold values."""


@dataclass(frozen=True)
class Scale:
    """A vertical axis that is linear within ±`linear` and logarithmic from there to ±`limit`."""

    linear: float
    limit: float

    @classmethod
    def of(cls, counts: Tensor) -> Scale:
        """The scale for histograms `[…, BINS]`: 80 % of values in the linear part, 99.95 % within the limits.

        Zeros do not count; inactive ReLU units have many of them.
        """
        both = counts.flatten(0, -2).sum(0).double()
        size = (both + both.flip(0))[len(both) // 2 + 1 :].cumsum(0)
        ends = edges()[len(both) // 2 + 2 :]
        linear, limit = (float(ends[int((size < part * size[-1]).sum())]) for part in (0.8, 0.9995))
        return cls(linear, limit)

    def cells(self) -> Tensor:
        """The edges of the panel's cells, equally spaced on this axis: `[ROWS + 1]`."""
        bound = math.asinh(self.limit / self.linear)
        return self.linear * torch.linspace(-bound, bound, ROWS + 1, dtype=torch.float64).sinh()

    def apply(self, axes: Axes, *, labelled: bool) -> None:
        """Set the scale, limits and ticks of the vertical axis."""
        largest = max(m * 10.0**k for k in range(-9, 4) for m in (1, 2, 5) if m * 10.0**k < self.limit)
        marks = [mark for mark in (largest / 10, largest) if mark > self.linear]
        ticks = [*(-mark for mark in reversed(marks)), 0.0, *marks]
        axes.set_yscale("asinh", linear_width=self.linear)
        axes.set_ylim(-self.limit, self.limit)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks] if labelled else [""] * len(ticks))


def gradient_histograms(runs: Sequence[Run]) -> Figure:
    """Fig. 6: a row per run that recorded histograms, a column per inner step, then the meta-gradient.

    The inner steps of all runs share one vertical scale, and their meta-gradients another. Darker blue means
    a higher count, on a logarithmic colour scale.
    """
    recorded = [(run.config.method, found) for run in runs if (found := run.histograms()) is not None]
    counts = [torch.stack(found.counts) for _, found in recorded]
    steps = max(each.shape[1] for each in counts) - 1
    inner = Scale.of(torch.cat([each[:, :-1].flatten(0, 1) for each in counts]))
    meta = Scale.of(torch.cat([each[:, -1] for each in counts]))
    with styled():
        size = (1.9 * (steps + 1) + 1, 1.9 * len(recorded) + 0.6)
        figure, grid = subplots(len(recorded), steps + 1, size, squeeze=False)
        for line, (name, found), each in zip(grid, recorded, counts, strict=True):
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
    """The histograms `counts [snapshots, BINS]` of one gradient, as columns of cells."""
    every = math.ceil(len(iterations) / COLUMNS)
    merged = torch.stack([part.double().sum(0) for part in counts.split(every)])
    gap = iterations[1] - iterations[0] if len(iterations) > 1 else 1
    times = [*iterations[::every], iterations[-1] + gap]
    density = _fractions(merged, scale.cells())
    norm = LogNorm(vmin=0.02 / ROWS, vmax=10 / ROWS)  # a uniform distribution has 1 / ROWS in every cell
    shown = np.ma.masked_equal(density.T.numpy(), 0)
    axes.pcolormesh(times, scale.cells().numpy(), shown, cmap="Blues", norm=norm, rasterized=True)
    axes.grid(False)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(2))


def _fractions(counts: Tensor, cells: Tensor) -> Tensor:
    """The fraction of `counts [columns, BINS]` between neighbouring `cells`: `[columns, ROWS]`.

    Values are assumed to be distributed uniformly within a bin.
    """
    ends, below = edges().numpy(), torch.nn.functional.pad(counts.cumsum(1), (1, 0)).numpy()
    total = counts.sum(1, keepdim=True).clamp(min=1)
    found = np.stack([np.interp(cells.numpy(), ends, each) for each in below])
    return torch.from_numpy(found).diff(dim=1) / total
