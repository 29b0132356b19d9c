"""`pathaware sweep FILE`: many runs from one file, and one table of what they reached."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

TABLE = "summary"


def sweep(
    file: Annotated[Path, typer.Argument(help="TOML: a configuration and what to vary.", metavar="FILE")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs, records and the table [sweeps/FILE].")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Runs at a time [one a GPU; on a CPU what its threads allow].", min=1)
    ] = None,
    devices: Annotated[str | None, typer.Option(help="GPUs to use, as cuda:0,cuda:1 [all].")] = None,
    split: Annotated[str, typer.Option(help="Classes to judge on: val, or test once all is chosen.")] = "val",
    tasks: Annotated[
        int | None, typer.Option(help="New tasks to judge on [1000 waves, 600 episodes].", min=2)
    ] = None,
) -> None:
    """Train every combination in a process of its own. The same command goes on where it was stopped."""
    from pathaware.cli.show import print_table
    from pathaware.core.errors import UsageError
    from pathaware.experiments.report.table_files import write_table
    from pathaware.experiments.sweep.grid import run_grid
    from pathaware.experiments.sweep.plan import Plan
    from pathaware.experiments.sweep.search import Search, optuna
    from pathaware.experiments.sweep.summary import summary
    from pathaware.experiments.sweep.workers import Folder, locked, places

    if split not in ("val", "test"):
        raise UsageError(f"--split: {split!r} is none of val, test")
    plan = Plan.read(file)
    if plan.trials:
        if split != "val":
            raise UsageError("--split: a search chooses by validation; judge what it finds with evaluate")
        optuna()
    points = list(plan.grid())
    room = places(points, workers, devices)
    folder = Folder(out or Path("sweeps") / file.stem, split, tasks)
    if not plan.trials:
        for point in points:
            folder.must_fit(point)
    folder.make()
    with locked(folder.path):
        try:
            if plan.trials:
                outcomes = Search(plan, folder, _say).run(room)
            else:
                outcomes = run_grid(points, folder, room, _say)
        except KeyboardInterrupt:
            _say("interrupted; the same command goes on where this one stopped")
            raise typer.Exit(130) from None
    table = summary(file.stem, outcomes, folder)
    print_table(table)
    for path in write_table(table, folder.path, TABLE):
        _say(str(path))
    if all(outcome.result is None for outcome in outcomes):
        raise typer.Exit(1)


def _say(line: str) -> None:
    print(" ".join(line.split()), file=sys.stderr, flush=True)
