"""How our figures look."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib

from pathaware.training.run_folder import Run

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

# Colours that colour-blind readers can tell apart (Okabe and Ito); a method keeps its own everywhere.
COLOURS = {
    "pamela": "#d55e00",
    "maml": "#0072b2",
    "meta-sgd": "#009e73",
    "fomaml": "#56b4e9",
    "reptile": "#cc79a7",
}
INK, QUIET, FAINT, TRUTH = "#222222", "#6b6b6b", "#b8b8b8", "#999999"


def colour(method: str) -> str:
    return COLOURS.get(method, "#8172b3")


@contextmanager
def styled() -> Iterator[None]:
    """Draw inside this block; pyplot's global settings stay as they were."""
    settings: dict[Any, Any] = {
        "figure.dpi": 150,
        "figure.constrained_layout.use": True,
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.edgecolor": FAINT,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "grid.color": "#eeeeee",
        "legend.frameon": False,
        "svg.hashsalt": "pathaware",
    }
    with plt.rc_context(settings):
        yield


def save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    return path


def data_uri(figure: Figure) -> str:
    """The figure as an address that an HTML page carries in itself."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


# What runs are called and drawn in, so that they can be told apart.


def labels(runs: Sequence[Run]) -> list[str]:
    """Their methods; where two runs share one, their folders."""
    names = [run.config.method for run in runs]
    if len(set(names)) < len(runs):
        names = [run.folder.name for run in runs]
    return names if len(set(names)) == len(runs) else [str(run.folder) for run in runs]


def looks(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """A label and a colour for each: its method's own, unless another run has that method too."""
    methods = [run.config.method for run in runs]
    palette = list(COLOURS.values())
    shades = (
        map(colour, methods)
        if len(set(methods)) == len(runs)
        else (palette[i % len(palette)] for i in range(len(runs)))
    )
    return list(zip(labels(runs), shades, strict=True))
