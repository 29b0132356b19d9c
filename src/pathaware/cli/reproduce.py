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
        int | None, typer.Option(help="Train each run for so many instead of the paper's.", min=1)
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only this row; can be given again.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each row, with seeds 0, 1, …", min=1)] = 1,
    data: Annotated[str, typer.Option(help="Data set of table4, fig6 and methods.")] = "miniimagenet",
    tasks: Annotated[
        int | None, typer.Option(help="New tasks to judge on [1000 waves, 600 episodes].", min=2)
    ] = None,
    together: Annotated[int, typer.Option(help="Runs that share a GPU, side by side.", min=1)] = 1,
    results: Annotated[Path | None, typer.Option(help="Folder of records; default: OUT/results.")] = None,
    train: Annotated[bool, typer.Option(help="Train what is missing, or only show what is there.")] = True,
    setting: Setting = None,
) -> None:
    """Train what is missing, continue what was stopped, and show our numbers beside the paper's."""
    from pathaware.cli.show import print_table
    from pathaware.experiments.paper import targets as maker
    from pathaware.experiments.paper.time_estimate import seconds
    from pathaware.experiments.run_store import Length, Workshop

    if budget and iterations:
        raise UsageError("--budget: it decides the number of iterations; leave out --iterations")
    for target in targets:
        if target not in (*maker.TARGETS, "all"):
            raise UsageError(f"TARGET: {target!r} is none of {', '.join(maker.TARGETS)}, all")
    for option, folder in (("--out", out), ("--results", results or out)):
        _must_be_possible(option, folder)
    chosen = maker.TARGETS if "all" in targets else tuple(dict.fromkeys(targets))
    made = maker.Maker(
        Workshop(out, results, tasks),
        out,
        _say,
        seeds,
        Length(iterations, None if budget is None else seconds(budget)),
        together,
        train,
        parse_settings(setting),
    )
    for target in chosen:
        try:
            table = made.make(target, data, only or ())
        except UsageError as error:
            if len(chosen) == 1:
                raise
            _say(f"{target} left out: {error}")  # what can be made, is made
        else:
            if table:
                print_table(table)


def _must_be_possible(option: str, folder: Path) -> None:
    """Before anything is said or trained for it."""
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
    except (OSError, ValueError) as error:
        raise UsageError(f"{option}: {folder} cannot be a folder ({error})") from None
    if not there.is_dir():
        raise UsageError(f"{option}: {there} is a file; name a folder")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
