"""A race as a table: how well data sets are learned at the start and the end of the stream, at what cost."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from pathaware.experiments.online.comparison import early_error, interval, late_error
from pathaware.experiments.report.style import COLOURS, QUIET, styled
from pathaware.training.provenance import commit, environment
from pathaware.training.tables import Row, Table

SHOWN = {"rate": "α₁", "meta_rate": "α₂", "pull": "λ"}


def race_table(record: Mapping[str, Any]) -> Table:
    header = (
        "contestant",
        f"{record['metric']}, first tenth",
        f"{record['metric']}, last quarter",
        "gradients a data set",
        "chosen",
    )
    rows = []
    for name, found in record["contestants"].items():
        cells = (
            found["label"],
            shown([early_error(each) for each in found["errors"]]),
            shown([late_error(each) for each in found["errors"]]),
            f"{found['gradients_per_data_set']:.0f}",
            chosen(found),
        )
        rows.append(Row(cells, emphasis=name == "online"))
    return Table("", header, rows)


def shown(values: Sequence[float]) -> str:
    mean, half = interval(values)
    return f"{mean:.3f}" if math.isnan(half) else f"{mean:.3f} ± {half:.3f}"


def chosen(found: Mapping[str, Any]) -> str:
    """The rates, as the paper writes them; and how θ descends, where that was a choice."""
    settings = found["settings"]
    told = [f"{sign} {settings[key]:g}" for key, sign in SHOWN.items() if key in settings]
    if len({each["settings"].get("descent") for each in found["tried"]}) > 1:
        told.append(settings["descent"])
    return ", ".join(told)


# The picture of a race: error over the stream, one line a contestant.


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


# What a race leaves in a folder: its record and its picture.


def origin() -> dict[str, Any]:
    """Of what runs; asked before it runs, while the code on the disk is the same."""
    return {"commit": commit(), "environment": environment()}


def write(record: Mapping[str, Any], folder: Path, stem: str) -> list[Path]:
    from pathaware.experiments.report.style import save

    text = json.dumps(record, indent=1)
    text = re.sub(r"\[[^][{}]*\]", lambda found: " ".join(found.group().split()), text)  # numbers on one line
    path = folder / f"{stem}.json"
    path.write_text(text + "\n", encoding="utf-8")
    return [path, *(save(draw(record), folder / f"{stem}.{ending}") for ending in ("png", "svg"))]
