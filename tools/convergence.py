"""Draw docs/images/convergence.png: accuracy on validation tasks over training, and make its table.

    python -m tools.convergence docs/images results

From the validations that the records of Tables 1 and 2 keep: PAMELA, Meta-SGD and MAML, the paper's settings.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from pathaware.experiments.report.style import colour, save, styled, subplots
from pathaware.training.tables import NOTHING, Table

METHODS = {"maml": "MAML", "meta-sgd": "Meta-SGD", "pamela": "PAMELA"}
DATA = {"cifar-fs": "CIFAR-FS", "miniimagenet": "miniImageNet"}
PANELS = [(data, shots) for data in DATA for shots in (5, 1)]
LENGTH = 12_000
Curve = dict[int, float]
"""Accuracy, mean of the seeds, by iteration."""


def curves(folder: Path, data: str, shots: int) -> dict[str, tuple[Curve, list[Curve]]]:
    """For each method the mean of its seeds and the curve of each."""
    pattern = re.compile(rf"{data}-(\S+)-{shots}shot-{LENGTH}-seed\d+")
    found: dict[str, list[Curve]] = defaultdict(list)
    for path in sorted(folder.glob(f"{data}-*-{shots}shot-{LENGTH}-seed*.json")):
        match = pattern.fullmatch(path.stem)
        if match and match[1] in METHODS:
            record = json.loads(path.read_text(encoding="utf-8"))
            found[match[1]].append(dict(record["validation"]))
    return {name: (_mean(each), each) for name in METHODS if (each := found.get(name))}


def _mean(seeds: list[Curve]) -> Curve:
    common = set(seeds[0]).intersection(*seeds)
    return {iteration: fmean(seed[iteration] for seed in seeds) for iteration in sorted(common)}


def table(folder: Path) -> Table:
    """Best validation accuracy of each method, and when it passes the best of MAML."""
    rows = []
    for data, shots in PANELS:
        found = curves(folder, data, shots)
        target = max(found["maml"][0].values())
        for name, (mean, seeds) in found.items():
            passed = next((iteration for iteration, value in mean.items() if value > target), None)
            rows.append(
                [
                    f"{DATA[data]} {shots}-shot",
                    METHODS[name],
                    str(len(seeds)),
                    f"{100 * max(mean.values()):.2f}",
                    f"{max(mean, key=lambda i: mean[i]):,}",
                    NOTHING if passed is None else f"{passed:,}",
                ]
            )
    header = ["", "method", "seeds", "best, %", "at iteration", "above MAML's best from"]
    return Table.of("", header, rows)


def draw(folder: Path) -> Figure:
    """A panel per column of the tables; thin lines are seeds."""
    with styled():
        figure, panels = subplots(1, len(PANELS), (13, 3.6), sharex=True)
        for axes, (data, shots) in zip(panels, PANELS, strict=True):
            _panel(axes, curves(folder, data, shots))
            axes.set(title=f"{DATA[data]} {shots}-shot", xlabel="iterations")
        panels[0].set_ylabel("validation accuracy, %")
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
    axes.set_xticks(range(0, LENGTH + 1, LENGTH // 3))


def main() -> None:
    folder, results = Path(sys.argv[1]), Path(sys.argv[2])
    print(save(draw(results), folder / "convergence.png"))


if __name__ == "__main__":
    main()
