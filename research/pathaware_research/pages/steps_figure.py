"""Draw docs/images/steps.png: sine waves and images by the number of inner steps.

From the records of `pathaware_research.studies.steps` and `pathaware reproduce steps`.
"""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pathaware.report.style import colour, styled, subplots
from pathaware.sweep.intervals import mean
from pathaware.training.metric import ACCURACY
from pathaware.training.provenance import task_values
from pathaware_research.experiments import Results
from pathaware_research.pages.evidence_page import image_steps, of_runs
from pathaware_research.paper.tables import STEPPED, STEPS
from pathaware_research.studies import steps


def errors(results: Results, method: str, n: int) -> Tensor:
    """The mean error over test waves of each seed: `[seeds]`."""
    found = of_runs(results, (steps.with_steps(method, n, seed) for seed in range(steps.SEEDS)))
    values = [task_values(result.record) for result in found]
    return torch.stack([each.mean() for each in values if each is not None])


def draw(results: Results) -> Figure:
    """Errors on sine waves, with thin lines for seeds; accuracies on images; the path of the longest runs."""
    spec, on_images = image_steps(results)
    (title,) = {column.partition(",")[0] for column in spec.columns}
    with styled():
        figure, (waves, images, path) = subplots(1, 3, (10, 3.4))
        for method, name in STEPPED.items():
            tone = colour(method.removesuffix("-direct"))
            style: dict[str, Any] = {"color": tone, "marker": "o", "ms": 3, "label": name}
            if method in steps.METHODS:
                curves = torch.stack([errors(results, method, n) for n in STEPS], dim=-1)
                for seed in curves:
                    waves.plot(STEPS, seed, color=tone, lw=0.5, alpha=0.5)
                waves.plot(STEPS, curves.mean(0), **style)
            there = {n: 100 * mean(found, ACCURACY)[0] for n, found in on_images[method].items() if found}
            images.plot(list(there), list(there.values()), **style)
            for result in on_images[method][max(STEPS)]:
                after = result.record["result"]["accuracy_per_step"]
                path.plot(range(len(after)), [100 * each for each in after], **style)
        ticks = (1, 5, 10, 20)
        waves.set(title="sine waves, K = 10", xlabel="inner steps n", yscale="log", xticks=ticks)
        waves.set_ylabel("mean squared error")
        images.set(title=title, xlabel="inner steps n", ylabel="accuracy, %", xticks=ticks)
        path.set(title=f"{title}, n = {max(STEPS)}", xlabel="after step", xticks=(0, *ticks[1:]))
        handles, names = path.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(handles))
    return figure
