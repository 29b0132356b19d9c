"""Figures of gradients: histograms over training (Fig. 6) and the flow along a path (section 3.2).

Meta-training propagates G = ∇L(θₙ), the gradient of the query loss, back to θ₀ through every inner step. A
step of MAML multiplies it by 1 − αH; a skip connection adds a path around the step. The ratio
‖∇_{θ₀} L(θₙ)‖ / ‖G‖ tells whether the gradient vanishes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from torch import Tensor

from pathaware.core.few_shot import FewShotLearner
from pathaware.core.learner import MetaLearner, require_path
from pathaware.core.seeding import generator
from pathaware.experiments.report.style import TRUTH, styled, subplots
from pathaware.methods.pamela import Pamela
from pathaware.training.gradient_probe import edges
from pathaware.training.problems import Problem
from pathaware.training.run_folder import Run

ROWS, COLUMNS = 96, 120
"""The largest number of cells in a panel: enough to look smooth, few enough for each to hold values."""
LOG_RATIO = 20
"""An axis is logarithmic if the ratio of its largest to its smallest value is above this."""

QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Flow:
    """Values `[tasks, n]` for paths of 1 … n steps.

    `initial_norm` is the norm of the meta-gradient of θ₀ (without Φ), `final_norm` the norm of G, and `loss`
    the query loss at the end of the path.
    """

    label: str
    initial_norm: Tensor
    final_norm: Tensor
    loss: Tensor

    @property
    def ratio(self) -> Tensor:
        """The fraction of the final gradient's norm that reaches the initialisation."""
        return self.initial_norm / self.final_norm

    def summary(self) -> dict[str, Any]:
        """Mean, standard deviation and quartiles over tasks after 1 … n steps, under stable keys."""
        columns = {"start": self.initial_norm, "end": self.final_norm, "share": self.ratio, "loss": self.loss}
        statistics = {name: _statistics(values) for name, values in columns.items()}
        return {"label": self.label, "tasks": len(self.loss)} | statistics


def gradient_flow(
    learner: MetaLearner,
    problem: Problem,
    label: str,
    *,
    tasks: int = 100,
    seed: int = 0,
    batch: int | None = None,
) -> Flow:
    """Measure gradients of training tasks after 1 … n steps, where n is the number the rule was trained for.

    With more steps PAMELA would repeat its last Q without skips, which is a different rule. `batch` tasks run
    side by side, with the graph of all their steps in memory: for images one by default, as ten steps of a
    Conv-4 on 84×84 pixels take gigabytes per task.
    """
    reference = next(learner.parameters())
    source = problem.tasks("train", reference.device, reference.dtype)
    plan = source.draw(tasks, generator(seed, "gradient flow"))
    size = batch or (problem.evaluation_batch if problem.regression else 1)
    parts = []
    for first in range(0, tasks, size):
        episodes = source.gather(plan[first : first + size])
        path = learner.path(episodes.support_x, episodes.support_y, order="second")
        found = []
        for j in range(1, len(path.points)):
            end = learner.end(path, j)
            loss, g = learner.gradient(end, episodes.query_x, episodes.query_y)
            (back,) = torch.autograd.grad(end, path.points[0], g, retain_graph=True)
            found.append(torch.stack([back.norm(dim=1), g.norm(dim=1), loss.detach()]))
        parts.append(torch.stack(found, dim=-1).double().cpu())
    return Flow(label, *torch.cat(parts, dim=1))


def with_constant_skips(
    learner: MetaLearner,
    problem: Problem,
    *,
    rate: float,
    steps: int = 20,
    skip: int = 2,
    values: Sequence[float] = (0.0, 0.25, 0.5, 0.75),
    tasks: int = 100,
) -> list[Flow]:
    """Isolate the effect of skips: one step size everywhere and the same constant P at every skip.

    P = 0 is MAML. The divergence guard is off: for reverted tasks it would pass the gradient back unchanged.
    """
    flows = []
    for p in values:
        rule = Pamela(
            learner.model,
            steps,
            rate=1.0,
            q_start=rate,
            p_start=p,
            skip=skip,
            q="constant",
            p_granularity="model",
        )
        rule = rule.to(next(learner.model.parameters()))
        adapted = MetaLearner(learner.model, rule, learner.loss, guard=False)
        flows.append(gradient_flow(adapted, problem, f"P = {p:g}" if p else "P = 0, MAML", tasks=tasks))
    return flows


def of_trained(runs: Sequence[tuple[Run, FewShotLearner]], *, tasks: int = 100) -> list[Flow]:
    """Measure trained runs with the guard as in training; runs that learned P also with P set to 0."""
    flows = []
    for run, each in runs:
        learner = require_path(each)
        problem, name = run.config.problem, run.config.method
        flows.append(gradient_flow(learner, problem, name, tasks=tasks))
        if "p" in learner.rule.broadcasts() and len(learner.rule.get_parameter("p")):
            without = copy.deepcopy(learner)
            torch.nn.init.zeros_(without.rule.get_parameter("p"))
            flows.append(gradient_flow(without, problem, f"{name}, P set to 0", tasks=tasks))
    return flows


def _statistics(values: Tensor) -> dict[str, list[float]]:
    low, middle, high = values.quantile(values.new_tensor(QUARTILES), dim=0)
    columns = {"mean": values.mean(0), "std": values.std(0), "q25": low, "median": middle, "q75": high}
    return {name: column.tolist() for name, column in columns.items()}


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


def flow_figure(flows: Sequence[Flow], title: str) -> Figure:
    """Medians and quartiles over tasks of the norm at θ₀ and of its ratio to the final norm, by inner steps.

    The third panel shows the ratio against the query loss, which tells whether a rule preserves the gradient
    or merely descends more slowly.
    """
    shades = matplotlib.colormaps["viridis"](torch.linspace(0.0, 0.85, len(flows)).numpy())
    with styled():
        figure, (norm, ratio, progress) = subplots(1, 3, (13, 3.9))
        for flow, shade in zip(flows, shades, strict=True):
            _along_steps(norm, flow.initial_norm, shade, flow.label)
            _along_steps(ratio, flow.ratio, shade, flow.label)
            progress.plot(_median(flow.loss), _median(flow.ratio), "o-", color=shade, markersize=3)
        norm.set(title="‖∇θ₀ L(θₙ)‖", xlabel="inner steps n")
        ratio.set(title="‖∇θ₀ L(θₙ)‖ / ‖∇θₙ L(θₙ)‖", xlabel="inner steps n")
        progress.set(title="the same ratio, by query loss", xlabel="query loss at θₙ")
        for axes in (norm, ratio):
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes in (ratio, progress):
            axes.axhline(1, color=TRUTH, linestyle="--", linewidth=1, zorder=0)
        for axes in (norm, ratio, progress):
            low, high = axes.dataLim.intervaly
            axes.set(yscale="log") if high > LOG_RATIO * low else axes.set_ylim(bottom=0)
        low, high = progress.dataLim.intervalx
        progress.set_xscale("log" if high > LOG_RATIO * low else "linear")
        progress.invert_xaxis()
        handles = norm.get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=len(flows), fontsize=9)
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
