"""The common style of all figures: colours, labels of runs, and how figures are saved."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from pathaware.core.writing import make_folder, replace_file
from pathaware.training.run_folder import Run

# Colours that colour-blind readers can tell apart (Okabe and Ito). A method has the same one in every figure.
COLOURS = {
    "pamela": "#d55e00",
    "maml": "#0072b2",
    "meta-sgd": "#009e73",
    "fomaml": "#56b4e9",
    "reptile": "#cc79a7",
}
OTHER_COLOUR = "#8172b3"
DPI = 150
"""Resolution of figures in files. Notebooks show less, so that they stay small."""
INK, QUIET, FAINT, TRUTH = "#222222", "#6b6b6b", "#b8b8b8", "#999999"


def colour(method: str) -> str:
    return COLOURS.get(method, OTHER_COLOUR)


@contextmanager
def styled(font: float = 10) -> Iterator[None]:
    """Apply the style to figures made in this block; matplotlib's global settings are restored after it.

    `font` is the size of text in points. A phone scales figures to its width, so text is legible there only
    if it is large compared with the width of the figure.
    """
    settings: dict[Any, Any] = {
        "figure.dpi": 100,
        "figure.constrained_layout.use": True,
        "font.size": font,
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
    with matplotlib.rc_context(settings):
        yield


class NotebookFigure(Figure):
    """A figure outside of pyplot: it changes no backend and opens no window, and notebooks show it."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def subplots(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, Any]:
    """A figure of `size` inches and its axes, as `matplotlib.pyplot.subplots` returns them."""
    figure = NotebookFigure(figsize=size)
    return figure, figure.subplots(rows, columns, **options)


def save(figure: Figure, path: Path, within: Path | None = None) -> Path:
    """Write the figure in the format of the path's ending."""
    make_folder(path.parent, within)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:] or "png", dpi=DPI)
    replace_file(path, buffer.getvalue(), within)
    return path


def data_uri(figure: Figure) -> str:
    """The figure as an SVG in a `data:` URI, for pages in a single file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def labels(runs: Sequence[Run]) -> list[str]:
    """A distinct label for each run: its method, or its folder if two runs share a method."""
    names = [run.config.method for run in runs]
    if len(set(names)) < len(runs):
        names = [run.folder.name for run in runs]
    return names if len(set(names)) == len(runs) else [str(run.folder) for run in runs]


def run_styles(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """A label and a colour for each run: its method's colour, unless two runs share a method."""
    methods = [run.config.method for run in runs]
    palette = list(COLOURS.values())
    if len(set(methods)) == len(runs):
        colours = [colour(method) for method in methods]
    else:
        colours = [palette[i % len(palette)] for i in range(len(runs))]
    return list(zip(labels(runs), colours, strict=True))
