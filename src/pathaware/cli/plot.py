"""`pathaware plot RUN…`: draw figures of one run, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pathaware.cli.options import OUTPUT, Replace, argument, complete_run, examples, panel_option

EXAMPLES = examples(
    "pathaware plot runs/sine-k10-pamela-seed0",
    "pathaware plot runs/sine-k10-pamela-seed0 runs/sine-k10-maml-seed0",
)

Runs = Annotated[list[Path], argument("Folders of trained runs.", "RUN...", complete_run)]


def plot(
    runs: Runs,
    out: Path | None = panel_option(
        None, OUTPUT, "Folder for the figures.", shown="figures in the first RUN"
    ),
    replace: Replace = False,
) -> None:
    """Draw predictions, loss along the path, learned Q and P, recorded gradients, and the training curve."""
    from pathaware.cli.options import open_trained
    from pathaware.core.errors import UsageError
    from pathaware.report.figures import figures
    from pathaware.report.style import save
    from pathaware.training.run_folder import FIGURES

    opened = [open_trained(folder) for folder in runs]
    if len({run.config.problem for run in opened}) > 1:
        raise UsageError(
            "runs of different problems cannot share a figure; plot them separately", field="run"
        )
    folder = out or opened[0].folder / FIGURES
    try:
        for name, _, figure in figures(opened):
            path = folder / f"{name}.png"
            if out is not None and path.exists() and not replace:  # the default belongs to the run
                raise UsageError(f"{path} exists; add --replace to overwrite it", field="out")
            print(save(figure, path, within=opened[0].folder if out is None else None))
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror})", field="out") from None
