"""What adaptation does: the paper's Fig. 4 (fitted curves) and Fig. 5 (error along the path)."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from pathaware.few_shot import FewShotLearner
from pathaware.report.looks import looks
from pathaware.report.style import INK, TRUTH, styled
from pathaware.seeding import generator
from pathaware.training.evaluation import evaluate
from pathaware.training.run import Run

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
        answers = learner.answers(episodes.support_x, episodes.support_y, episodes.query_x)
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
        axes.set(xlabel="inner steps", ylabel=metric, yscale="log" if metric == "mse" else "linear")
        axes.set_xticks(range(longest))
        axes.set_title(f"{tasks} new tasks: mean, middle 50 % and 90 %")
        axes.legend()
    return figure
