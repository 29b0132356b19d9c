"""`pathaware reproduce table1 … fig6 | all`: the paper's tables and figures, made again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pathaware.cli.options import Setting
from pathaware.cli.train import parse_settings
from pathaware.core.errors import UsageError

TARGETS = (
    "table1 to table5, fig4, fig5, fig6, gradients (of section 3.2), methods (all, in the same time), or all"
)


def reproduce(
    targets: Annotated[list[str], typer.Argument(help=f"{TARGETS}.", metavar="TARGET...")],
    out: Annotated[Path, typer.Option(help="Folder for runs, records, tables and figures.")] = Path("paper"),
    budget: Annotated[
        str | None,
        typer.Option(help="Train each target for this long, such as 10m or 2h; its rows say so."),
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Iterations per run (default: the paper's).", min=1)
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this row; can be repeated.")] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(help="Only this column, such as 'CIFAR-FS 5-shot' or cifar-fs-5shot; can be repeated."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs per cell, with seeds 0, 1, …", min=1)] = 1,
    data: Annotated[str, typer.Option(help="Data set of table4, fig6 and methods.")] = "miniimagenet",
    tasks: Annotated[
        int | None,
        typer.Option(help="New tasks to evaluate on (default: 1000 waves, 600 episodes).", min=2),
    ] = None,
    together: Annotated[int, typer.Option(help="Runs that share a GPU, side by side.", min=1)] = 1,
    results: Annotated[Path | None, typer.Option(help="Folder of records (default: OUT/results).")] = None,
    train: Annotated[bool, typer.Option(help="Train what is missing, or only show what is there.")] = True,
    setting: Setting = None,
) -> None:
    """Train what is missing, resume what was stopped, and show our numbers beside the paper's."""
    from pathaware.cli.show import print_table
    from pathaware.experiments.paper import targets as paper
    from pathaware.experiments.paper.time_estimate import TrainingLength, parse_duration
    from pathaware.experiments.run_store import RunStore

    if budget and iterations:
        raise UsageError("it decides the number of iterations; leave out --iterations", field="budget")
    for target in targets:
        if target not in (*paper.TARGETS, "all"):
            raise UsageError(f"{target!r} must be one of {', '.join(paper.TARGETS)}, all", field="target")
    for name, folder in (("out", out), ("results", results or out)):
        _check_folder(name, folder)
    paper.check_data(data)
    chosen = paper.TARGETS if "all" in targets else tuple(dict.fromkeys(targets))
    reproduction = paper.Reproduction(
        RunStore(out, results, tasks),
        out,
        _say,
        seeds,
        TrainingLength(iterations, None if budget is None else parse_duration(budget)),
        together,
        train,
        parse_settings(setting),
    )
    for target in chosen:
        try:
            table = reproduction.make(target, data, only or (), columns or ())
        except UsageError as error:
            if len(chosen) == 1:
                raise
            _say(f"{target} left out: {error.message}")  # the others are made
        else:
            if table:
                print_table(table)


def _check_folder(name: str, folder: Path) -> None:
    """Refuse what cannot be a folder, before anything is trained."""
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} cannot be a folder ({error})", field=name) from None
    if not there.is_dir():
        raise UsageError(f"{there} is a file; name a folder", field=name)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
