"""Draw docs/images/steps.png: errors on sine waves by the number of inner steps.

    python -m tools.steps_figure docs/images results

From the records of `studies.steps`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pathaware.experiments.paper.tables import STEPPED, STEPS
from pathaware.experiments.report.style import colour, save, styled, subplots
from pathaware.experiments.run_store import Results
from pathaware.training.provenance import task_values
from studies import steps
from tools.evidence_page import of_runs

PANELS = {
    "mean over waves": lambda errors: errors.mean(-1),
    "median over waves": lambda errors: errors.median(-1)[0],
}


def errors(results: Results, method: str, n: int) -> Tensor:
    """The error of each test wave: `[seeds, waves]`."""
    found = of_runs(results, (steps.with_steps(method, n, seed) for seed in range(steps.SEEDS)))
    values = [task_values(result.record) for result in found]
    return torch.stack([each for each in values if each is not None])


def draw(results: Results) -> Figure:
    """A panel for the mean and one for the median; thin lines are seeds."""
    with styled():
        figure, panels = subplots(1, len(PANELS), (9, 3.6), sharey=True)
        for axes, (title, statistic) in zip(panels, PANELS.items(), strict=True):
            for method, name in STEPPED.items():
                curves = torch.stack([statistic(errors(results, method, n)) for n in STEPS], dim=-1)
                for seed in curves:
                    axes.plot(STEPS, seed, color=colour(method), lw=0.5, alpha=0.5)
                axes.plot(STEPS, curves.mean(0), color=colour(method), marker="o", ms=3, label=name)
            axes.set(title=title, xlabel="inner steps n", yscale="log", xticks=(1, 5, 10, 20))
        panels[0].set_ylabel("mean squared error")
        panels[1].legend()
    return figure


def main() -> None:
    folder, records = Path(sys.argv[1]), Path(sys.argv[2])
    print(save(draw(Results.read(records)), folder / "steps.png"))


if __name__ == "__main__":
    main()
