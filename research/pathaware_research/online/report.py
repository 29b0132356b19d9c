"""The table, the figure and the files of a comparison of online learners."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter
from numpy.typing import NDArray

from pathaware.report.style import COLOURS, QUIET, save, styled, subplots
from pathaware.training.provenance import environment, revision, write_record
from pathaware.training.tables import Row, Table
from pathaware_research.online.comparison import early_error, interval, late_error

SYMBOLS = {"rate": "α₁", "meta_rate": "α₂", "pull": "λ"}


def comparison_table(record: Mapping[str, Any]) -> Table:
    """Errors at the start and the end of the stream, and what they cost, with a row per learner."""
    header = (
        "method",
        f"{record['metric']}, first tenth",
        f"{record['metric']}, last quarter",
        "gradients per data set",
        "chosen",
    )
    rows = []
    for name, found in record["contestants"].items():
        cells = (
            found["label"],
            with_interval([early_error(each) for each in found["errors"]]),
            with_interval([late_error(each) for each in found["errors"]]),
            f"{found['gradients_per_data_set']:.0f}",
            chosen(found),
        )
        rows.append(Row(cells, emphasis=name == "online"))
    return Table("", header, rows)


def with_interval(values: Sequence[float]) -> str:
    mean, half = interval(values)
    return f"{mean:.3f}" if math.isnan(half) else f"{mean:.3f} ± {half:.3f}"


def chosen(found: Mapping[str, Any]) -> str:
    """The step sizes in the paper's symbols, and the optimiser of θ if there was a choice."""
    settings = found["settings"]
    texts = [f"{symbol} {settings[key]:g}" for key, symbol in SYMBOLS.items() if key in settings]
    if len({each["settings"].get("descent") for each in found["tried"]}) > 1:
        texts.append(settings["descent"])
    return ", ".join(texts)


Values = NDArray[np.float64]
SHADES = {
    "online": COLOURS["pamela"],
    "literal": COLOURS["reptile"],
    "leader": COLOURS["maml"],
    "tuning": COLOURS["meta-sgd"],
    "scratch": QUIET,
}
WINDOW = 10
"""Errors are averaged over this fraction of a stream, one tenth: single data sets differ a lot."""


def draw(record: Mapping[str, Any]) -> Figure:
    """Plot running means of errors over the stream, averaged over seeds, with 95 % intervals."""
    window = max(1, record["tasks"] // WINDOW)
    positions = np.arange(window, record["tasks"] + 1)
    curves = {name: _curve(found["errors"], window) for name, found in record["contestants"].items()}
    squared = record["metric"] == "mse"
    with styled():
        figure, axes = subplots(1, 1, (6.6, 4.9))
        for name, (mean, half) in curves.items():
            label = record["contestants"][name]["label"]
            axes.plot(positions, mean, color=SHADES[name], label=label, linewidth=1.8)
            if len(record["seeds"]) > 1:
                low = np.maximum(mean - half, 1e-12)  # positive, for the logarithmic axis
                axes.fill_between(positions, low, mean + half, color=SHADES[name], alpha=0.15, linewidth=0)
        axes.set(
            xlabel="data sets seen" + (f" (errors are means of the last {window})" if window > 1 else ""),
            ylabel="mean squared error" if squared else "error rate",
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
        figure.legend(loc="outside lower center", ncols=2, title=_seeds(record["seeds"]))
    return figure


def _curve(errors: Sequence[Sequence[float]], window: int) -> tuple[Values, Values]:
    """Mean over seeds and half-width of its interval, from the first full window on."""
    runs = [running_mean(each, window) for each in errors]
    mean, half = np.array([interval(values) for values in zip(*runs, strict=True)]).T
    return mean, half


def running_mean(values: Sequence[float], window: int) -> list[float]:
    """Means of the last `window` values, from the first full window on."""
    return [float(mean) for mean in np.convolve(values, np.full(window, 1 / window), mode="valid")]


def _seeds(seeds: Sequence[int]) -> str:
    return "one seed" if len(seeds) == 1 else f"mean of {len(seeds)} seeds, 95 % interval"


def origin() -> dict[str, Any]:
    """Commit and environment; call it before a long run, while the files are those that run."""
    return {**revision(), "environment": environment()}


def write(record: Mapping[str, Any], folder: Path, stem: str) -> list[Path]:
    """Write the record as JSON and its figure as PNG and SVG; return the paths."""
    path = folder / f"{stem}.json"
    write_record(path, record, field="out")
    return [path, *(save(draw(record), folder / f"{stem}.{ending}") for ending in ("png", "svg"))]
