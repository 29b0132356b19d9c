"""Draw docs/images/methods.png and .svg: accuracy of all methods against training and adaptation time.

    python -m tools.method_figure docs/images results

CIFAR-FS 5-shot after equally many iterations, from the records of Table 2; times are those of
`benchmarks/method_times.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pathaware.experiments.paper.method_table import mean
from pathaware.experiments.report.style import INK, QUIET, colour, save, styled, subplots
from pathaware.methods import METHODS
from pathaware.training.metric import ACCURACY
from tools.methods_page import COLUMNS, compared_on_images, method_times

MARKERS = {"second": "o", "first": "s", "none": "^"}
LABELS = {"second": "second order", "first": "first order", "none": "no inner loop"}


def draw(folder: Path) -> Figure:
    """Two panels with the same vertical axis: time of a meta-iteration, and time to adapt to a task."""
    column = COLUMNS[1]
    found = {name: cells[column] for name, cells in compared_on_images(folder).items() if cells[column]}
    length = next(iter(found.values()))[0].iterations
    values = {name: [100 * each for each in mean(results, ACCURACY)] for name, results in found.items()}
    times = method_times(folder, "cifar-fs")
    with styled():
        figure, (left, right) = subplots(1, 2, (12, 5.2), sharey=True)
        for axes, key in ((left, "training_ms"), (right, "adaptation_ms")):
            _panel(axes, values, {name: times[name][key] for name in values})
        left.set_ylabel(f"accuracy, %, {column}, {length:,} iterations")
        left.set(title="training", xlabel="CPU ms per task and meta-iteration")
        right.set(title="adaptation", xlabel="CPU ms to adapt to one task")
        handles = [
            left.plot([], [], MARKERS[order], color=QUIET, label=label)[0] for order, label in LABELS.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9)
    return figure


def _panel(axes: Axes, values: Mapping[str, list[float]], times: Mapping[str, float]) -> None:
    axes.set_xscale("log")
    for name, (value, half) in values.items():
        marker = MARKERS[METHODS[name].order]
        axes.errorbar(
            times[name], value, half, fmt=marker, color=colour(name), markersize=5, linewidth=1, alpha=0.9
        )
        axes.annotate(name, (times[name], value), (5, 3), textcoords="offset points", size=7.5, color=INK)


def main() -> None:
    folder, results = Path(sys.argv[1]), Path(sys.argv[2])
    for suffix in ("svg", "png"):
        print(save(draw(results), folder / f"methods.{suffix}"))


if __name__ == "__main__":
    main()
