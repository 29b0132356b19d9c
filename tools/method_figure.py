"""Draw docs/images/methods.png: accuracy of all methods against training and adaptation time.

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
from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter

from pathaware.experiments.paper.method_table import mean
from pathaware.experiments.report.style import INK, QUIET, colour, save, styled, subplots
from pathaware.methods import METHODS
from pathaware.training.metric import ACCURACY
from tools.methods_page import COLUMNS, compared_on_images, method_times

MARKERS = {"second": "o", "first": "s", "none": "^"}
LABELS = {"second": "second order", "first": "first order", "none": "no inner loop"}
WIDTH, HEIGHT = 62, 10
"""Room for a name in pixels."""


def draw(folder: Path) -> Figure:
    """Two panels with the same vertical axis: time of a meta-iteration, and time to adapt to a task."""
    column = COLUMNS[1]
    found = {name: cells[column] for name, cells in compared_on_images(folder).items() if cells[column]}
    length = next(iter(found.values()))[0].iterations
    values = {name: [100 * each for each in mean(results, ACCURACY)] for name, results in found.items()}
    times = method_times(folder, "cifar-fs")
    with styled():
        figure, (left, right) = subplots(1, 2, (12, 5.2), sharey=True)
        low, high = min(v - h for v, h in values.values()), max(v + h for v, h in values.values())
        left.set_ylim(low - 0.5, high + 0.5)
        figure.canvas.draw()  # lays the axes out, so that names can be placed in pixels
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
    for name, (value, half) in values.items():
        marker = MARKERS[METHODS[name].order]
        axes.errorbar(times[name], value, half, fmt=marker, color=colour(name), markersize=5, linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(min(times.values()) / 1.3, max(times.values()) * 1.6)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    _label(axes, {name: (times[name], value) for name, (value, _) in values.items()})


def _label(axes: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Write names beside points, from the top down, each below those that it would cover."""
    placed: list[tuple[float, float]] = []
    for name, point in sorted(points.items(), key=lambda item: -item[1][1]):
        x, y = axes.transData.transform(point)
        below = y
        while any(abs(x - other_x) < WIDTH and abs(below - other_y) < HEIGHT for other_x, other_y in placed):
            below -= 1
        placed.append((x, below))
        shift = (below - y) * 72 / axes.figure.dpi  # pixels to points
        text = f"{name} (joint)" if METHODS[name].queries else name
        axes.annotate(text, point, (5, shift - 2), textcoords="offset points", size=7.5, color=INK)


def main() -> None:
    folder, results = Path(sys.argv[1]), Path(sys.argv[2])
    print(save(draw(results), folder / "methods.png"))


if __name__ == "__main__":
    main()
