"""The picture of how cost grows: one panel a quantity, time above and memory below."""

from __future__ import annotations

from textwrap import wrap
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from pathaware.report.style import FAINT, INK, colour, styled

QUANTITIES = {"ms": "milliseconds", "memory_mb": "megabytes"}
LABELS = {"tasks": "tasks", "steps": "inner steps", "size": "image size, pixels", "width": "filters"}


def draw(record: dict[str, Any]) -> Figure:
    """Both axes are logarithmic: a line as steep as the grey one is linear growth."""
    series = record["series"]
    known = [
        key
        for key in QUANTITIES
        if any(p.get(key) is not None for one in series.values() for p in one["points"])
    ]
    with styled():
        figure, axes = plt.subplots(
            max(1, len(known)),
            len(series),
            figsize=(3.2 * len(series), 2.9 * max(1, len(known))),
            squeeze=False,
        )
        for row, key in zip(axes, known, strict=False):
            for axis, (name, one) in zip(row, series.items(), strict=True):
                points = {p["value"]: p[key] for p in one["points"] if p.get(key) is not None}
                panel(axis, points)
                axis.set_xlabel(LABELS.get(name, name))
            row[0].set_ylabel(QUANTITIES[key])
        title = f"One meta-iteration of PAMELA, from {record['base']}"
        figure.suptitle("\n".join(wrap(title, 26 * len(series))), fontsize=9)
        axes[0][0].legend()
    return figure


def panel(axis: Axes, points: dict[int, float]) -> None:
    if not points:
        return
    sizes = np.array(sorted(points), dtype=float)
    costs = np.array([points[int(n)] for n in sizes])
    axis.loglog(sizes, costs[-1] * sizes / sizes[-1], color=FAINT, linestyle="--", label="linear")
    axis.loglog(sizes, costs, color=colour("pamela"), marker="o", markersize=4, label="measured")
    axis.xaxis.set_major_locator(FixedLocator(list(sizes)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_xticklabels([f"{n:.0f}" for n in sizes], color=INK)
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda cost, _: f"{cost:,g}"))
    axis.yaxis.set_minor_locator(NullLocator())
