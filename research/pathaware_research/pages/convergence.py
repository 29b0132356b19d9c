"""Draw docs/images/convergence.png: accuracy on validation tasks over training, and make its table.

From the validations that records keep: PAMELA, Meta-SGD and MAML with the paper's settings, in Tables 1 and 2
and at the paper's length.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from pathaware.report.style import colour, styled, subplots
from pathaware.training.tables import NOTHING, Table
from pathaware_research.records import Records

METHODS = {
    "maml": "MAML",
    "meta-sgd": "Meta-SGD",
    "pamela-s1": "PAMELA, speed 1",
    "pamela": "PAMELA, Q learned directly",
}
"""Titles, by the method and the speed of Q in the names of records."""
DATA = {"cifar-fs": "CIFAR-FS", "miniimagenet": "miniImageNet"}
PANELS = [(data, shots) for data in DATA for shots in (5, 1)]
LENGTHS = (12_000, 60_000)
"""The length of Tables 1 and 2, and the paper's."""
Curve = dict[int, float]
"""Accuracy, mean of the seeds, by iteration."""


def curves(
    folder: Path, data: str, shots: int, length: int = LENGTHS[0]
) -> dict[str, tuple[Curve, list[Curve]]]:
    """For each method the mean of its seeds and the curve of each, of runs of this length."""
    pattern = re.compile(rf"{data}-(\S+)-{shots}shot-{length}-seed\d+")
    found: dict[str, list[Curve]] = defaultdict(list)
    for name, record in Records(f"tables-{data}", folder).items():
        match = pattern.fullmatch(name)
        if match and match[1] in METHODS:
            found[match[1]].append(dict(record["validation"]))
    return {name: (_mean(each), each) for name in METHODS if (each := found.get(name))}


def _mean(seeds: list[Curve]) -> Curve:
    common = set(seeds[0]).intersection(*seeds)
    return {iteration: fmean(seed[iteration] for seed in seeds) for iteration in sorted(common)}


def table(folder: Path) -> Table:
    """Best validation accuracy of each method, and when it passes the best of MAML."""
    rows = []
    for length, (data, shots) in itertools.product(LENGTHS, PANELS):
        found = curves(folder, data, shots, length)
        target = max(found["maml"][0].values())
        for name, (mean, seeds) in found.items():
            passed = next((iteration for iteration, value in mean.items() if value > target), None)
            rows.append(
                [
                    f"{DATA[data]} {shots}-shot",
                    f"{length:,}",
                    METHODS[name],
                    str(len(seeds)),
                    f"{100 * max(mean.values()):.2f}",
                    f"{max(mean, key=lambda i: mean[i]):,}",
                    NOTHING if passed is None else f"{passed:,}",
                ]
            )
    header = ["", "iterations", "method", "seeds", "best, %", "at iteration", "above MAML's best from"]
    return Table.of("", header, rows)


def draw(folder: Path) -> Figure:
    """A panel per column of the tables and length of training; thin lines are seeds."""
    with styled():
        figure, grid = subplots(len(LENGTHS), len(PANELS), (13, 6.4), sharey="col")
        panels, cells = grid.ravel(), itertools.product(LENGTHS, PANELS)
        for axes, (length, (data, shots)) in zip(panels, cells, strict=True):
            _panel(axes, curves(folder, data, shots, length))
            axes.set_xticks(range(0, length + 1, length // 3))
            axes.set(title=f"{DATA[data]} {shots}-shot", xlabel="iterations")
        for axes in panels[:: len(PANELS)]:
            axes.set_ylabel("validation accuracy, %")
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=len(handles))
    return figure


def _panel(axes: Axes, found: Mapping[str, tuple[Curve, list[Curve]]]) -> None:
    for name, (mean, seeds) in found.items():
        if len(seeds) > 1:
            for seed in seeds:
                axes.plot(list(seed), [100 * v for v in seed.values()], color=colour(name), lw=0.5, alpha=0.5)
        axes.plot(list(mean), [100 * v for v in mean.values()], color=colour(name), label=METHODS[name])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
