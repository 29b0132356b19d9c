"""The picture of a race: error over the stream, one line a contestant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from pathaware.online.race import interval
from pathaware.report.style import COLOURS, QUIET, styled

Values = NDArray[np.float64]
SHADES = {
    "online": COLOURS["pamela"],
    "literal": COLOURS["reptile"],
    "leader": COLOURS["maml"],
    "tuning": COLOURS["meta-sgd"],
    "scratch": QUIET,
}
WINDOW = 10
"""So much of a stream, one part in ten, is averaged over: single data sets are harder or easier by far."""


def draw(record: Mapping[str, Any]) -> Figure:
    """Means over seeds of running means, with their 95 % intervals."""
    window = max(1, record["tasks"] // WINDOW)
    positions = np.arange(window, record["tasks"] + 1)
    curves = {name: _curve(found["errors"], window) for name, found in record["contestants"].items()}
    squared = record["metric"] == "mse"
    with styled():
        figure, axes = plt.subplots(figsize=(8.6, 4.2))
        for name, (mean, half) in curves.items():
            label = record["contestants"][name]["label"]
            axes.plot(positions, mean, color=SHADES[name], label=label, linewidth=1.8)
            if len(record["seeds"]) > 1:
                low = np.maximum(mean - half, 1e-12)  # what a logarithm can show
                axes.fill_between(positions, low, mean + half, color=SHADES[name], alpha=0.15, linewidth=0)
        axes.set(
            xlabel="data sets seen" + (f" (errors are means of the last {window})" if window > 1 else ""),
            ylabel="mean squared error" if squared else "wrong answers",
            title=f"Error on each {'wave' if squared else 'glyph task'} of a stream, after learning it",
            xlim=(positions[0], positions[-1]),
        )
        highest = 1.05 * max(float((mean + np.nan_to_num(half)).max()) for mean, half in curves.values())
        if squared:
            lowest = min(float(mean.min()) for mean, _ in curves.values())
            axes.set(yscale="log", ylim=(lowest / 2, highest))
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(0, highest)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
        figure.legend(loc="outside right upper", fontsize=9, title=_seeds(record["seeds"]))
    return figure


def _curve(errors: Sequence[Sequence[float]], window: int) -> tuple[Values, Values]:
    """Mean over seeds, and half the width of its interval, from where a window is full."""
    runs = [running_mean(each, window) for each in errors]
    mean, half = np.array([interval(values) for values in zip(*runs, strict=True)]).T
    return mean, half


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Of the last `window` values, from where there are as many."""
    return [float(mean) for mean in np.convolve(values, np.full(window, 1 / window), mode="valid")]


def _seeds(seeds: Sequence[int]) -> str:
    return "one seed" if len(seeds) == 1 else f"mean of {len(seeds)} seeds,\n95 % interval"
