"""Draw docs/images/methods.png: accuracy of all methods against training and adaptation time.

CIFAR-FS 5-shot after equally many iterations, from the records of Table 2; times are those of
`research/pathaware_research/benchmarks/method_times.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter

from pathaware.methods import METHODS
from pathaware.report.style import COLOURS, INK, QUIET, colour, styled, subplots
from pathaware.sweep.intervals import mean
from pathaware.training.metric import ACCURACY
from pathaware_research.pages.methods_page import COLUMNS, compared_on_images, method_times

MARKERS = {"second": "o", "first": "s", "none": "^"}
LABELS = {"second": "second order", "first": "first order", "none": "no inner loop"}
GAP, LETTER, HEIGHT = 7, 7, 11
"""In pixels: between a point and its name, the width of a letter, the height of a name."""


def draw(folder: Path) -> Figure:
    """Two panels, one above the other: time of a meta-iteration, and time to adapt to a task."""
    column = COLUMNS[1]
    found = {name: cells[column] for name, cells in compared_on_images(folder).items() if cells[column]}
    length = next(iter(found.values()))[0].iterations
    values = {name: [100 * each for each in mean(results, ACCURACY)] for name, results in found.items()}
    times = method_times(folder, "cifar-fs")
    with styled():
        figure, (upper, lower) = subplots(2, 1, (7, 9.6), sharey=True)
        low, high = min(v - h for v, h in values.values()), max(v + h for v, h in values.values())
        upper.set_ylim(low - 0.5, high + 0.5)
        figure.canvas.draw()  # lays the axes out, so that names can be placed in pixels
        for axes, key in ((upper, "training_ms"), (lower, "adaptation_ms")):
            _panel(axes, values, {name: times[name.removesuffix("-direct")][key] for name in values})
            axes.set_ylabel("accuracy, %")
        upper.set(
            title=f"{column}, {length:,} iterations", xlabel="training: CPU ms per task and meta-iteration"
        )
        lower.set_xlabel("adaptation: CPU ms per task")
        handles = [
            upper.plot([], [], MARKERS[order], color=QUIET, label=label)[0] for order, label in LABELS.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _panel(axes: Axes, values: Mapping[str, list[float]], times: Mapping[str, float]) -> None:
    for name, (value, half) in values.items():
        method = METHODS[name.removesuffix("-direct")]
        style: dict[str, Any] = {"fmt": MARKERS[method.order], "color": colour(method.name)}
        axes.errorbar(times[name], value, half, **style, markersize=5, linewidth=1)
    axes.set_xscale("log")
    axes.set_xlim(min(times.values()) / 1.3, max(times.values()) * 1.6)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_locator(NullLocator())
    _label(axes, {name: (times[name], value) for name, (value, _) in values.items()})


def _label(axes: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Write each name beside its point: on the right or the left, at the nearest free height."""
    markers = {name: axes.transData.transform(point) for name, point in points.items()}
    taken = [(x - 4, x + 4, y) for x, y in markers.values()]
    for name, point in sorted(points.items(), key=lambda item: -item[1][1]):
        text = f"{name} (joint)" if METHODS[name.removesuffix("-direct")].transductive else name
        x, y = markers[name]
        for shift, side in itertools.product(sorted(range(-80, 81), key=abs), (1, -1)):
            near, far = x + side * GAP, x + side * (GAP + LETTER * len(text))
            box = min(near, far), max(near, far), y + shift
            if box[0] > axes.bbox.x0 and not any(_overlap(box, other) for other in taken):
                break
        taken.append(box)
        offset = side * GAP * 72 / axes.figure.dpi, shift * 72 / axes.figure.dpi  # pixels to points
        style: dict[str, Any] = {
            "size": 9,
            "color": COLOURS.get(name.removesuffix("-direct"), INK),
            "va": "center",
        }
        align = "left" if side == 1 else "right"
        axes.annotate(text, point, offset, textcoords="offset points", ha=align, **style)


def _overlap(one: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    """True if two boxes (left, right, middle), each `HEIGHT` high, overlap."""
    return one[0] < other[1] and other[0] < one[1] and abs(one[2] - other[2]) < HEIGHT
