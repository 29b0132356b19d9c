"""`pathaware plot RUN…`: draw figures of one run, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def plot(
    runs: Annotated[list[Path], typer.Argument(help="Folders of trained runs.", metavar="RUN...")],
    out: Annotated[Path | None, typer.Option(help="Folder for the figures (default: RUN/figures).")] = None,
) -> None:
    """Draw predictions, loss along the path, learned Q and P, recorded gradients, and the training curve."""
    from pathaware.core.errors import UsageError
    from pathaware.experiments.report.figures import figures
    from pathaware.experiments.report.style import save
    from pathaware.training.run_folder import FIGURES, Run

    opened = [Run.open(folder) for folder in runs]
    if len({run.config.problem for run in opened}) > 1:
        raise UsageError(
            "runs of different problems cannot share a figure; plot them separately", field="run"
        )
    folder = out or opened[0].folder / FIGURES
    try:
        for name, _, figure in figures(opened):
            print(save(figure, folder / f"{name}.png"))
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror})", field="out") from None
