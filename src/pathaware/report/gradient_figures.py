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

from pathaware.report.style import styled
from pathaware.training.histograms import edges
from pathaware.training.run import Run

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
