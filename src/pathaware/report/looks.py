"""What runs are called and drawn in, so that they can be told apart."""

from __future__ import annotations

from collections.abc import Sequence

from pathaware.report.style import COLOURS, colour
from pathaware.training.run import Run


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
