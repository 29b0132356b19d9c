"""Gradients along a path (section 3.2).

Meta-training propagates G = ∇L(θₙ), the gradient of the query loss, back to θ₀ through every inner step. A
step of MAML multiplies it by 1 − αH; a skip connection adds a path around the step. The ratio
‖∇_{θ₀} L(θₙ)‖ / ‖G‖ tells whether the gradient vanishes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from pathaware.core.few_shot import FewShotLearner
from pathaware.core.learner import MetaLearner, require_path
from pathaware.core.seeding import generator
from pathaware.methods.pamela import Pamela
from pathaware.report.style import TRUTH, styled, subplots
from pathaware.training.problems import Problem
from pathaware.training.run_folder import Run

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
            loss, g = learner.gradient_at(end, episodes.query_x, episodes.query_y)
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
        if "p" in learner.rule.coefficients() and len(learner.rule.get_parameter("p")):
            without = copy.deepcopy(learner)
            torch.nn.init.zeros_(without.rule.get_parameter("p"))
            flows.append(gradient_flow(without, problem, f"{name}, P set to 0", tasks=tasks))
    return flows


def _statistics(values: Tensor) -> dict[str, list[float]]:
    low, middle, high = values.quantile(values.new_tensor(QUARTILES), dim=0)
    columns = {"mean": values.mean(0), "std": values.std(0), "q25": low, "median": middle, "q75": high}
    return {name: column.tolist() for name, column in columns.items()}


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
