"""`pathaware reproduce TARGET…`: reproduce the paper's tables and figures."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated

import typer

from pathaware.cli.options import (
    COMPUTE,
    DATA,
    OUTPUT,
    TASKS,
    TRAINING,
    NewTasks,
    Setting,
    complete_data,
    examples,
    panel_option,
)
from pathaware.cli.train import parse_settings
from pathaware.core.errors import UsageError, did_you_mean

EXAMPLES = examples(
    "pathaware reproduce table2 --budget 1h",
    "pathaware reproduce table3 fig4 --iterations 2000",
    "pathaware reproduce all --no-train",
)

TARGETS = (
    "table1 to table5, full (MAML and PAMELA at the paper's length), steps (the number of inner steps), "
    "further (FC100 and Omniglot), fig4, fig5, fig6, "
    "gradients (Section 3.2 on sine waves), gradients-conv4 (on images), methods (all methods, equal "
    "training time), sine (all methods that fit curves), or all"
)

MOST_SEEDS = 1000


def reproduce(
    targets: Annotated[list[str], typer.Argument(help=f"{TARGETS}.", metavar="TARGET...")],
    out: Annotated[
        Path, panel_option(help="Folder for runs, records, tables and figures.", panel=OUTPUT)
    ] = Path("paper"),
    budget: Annotated[
        str | None,
        panel_option(
            help="Wall-clock time per target, such as 10m or 2h, with all --workers. All runs are shortened "
            "to fit, and the table states it. With --iterations, as many whole runs as fit are trained, the "
            "most informative first.",
            panel=TRAINING,
            default="none: train all iterations",
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        panel_option(help="Meta-iterations per run.", panel=TRAINING, default="the paper's", min=1),
    ] = None,
    only: Annotated[
        list[str] | None,
        panel_option(
            help="Train and show only this row. Can be repeated.",
            panel=TASKS,
            default="all rows",
            metavar="ROW",
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        panel_option(
            help="Only this column, such as 'CIFAR-FS 5-shot' or cifar-fs-5shot. Can be repeated.",
            panel=TASKS,
            default="all columns",
            metavar="COLUMN",
        ),
    ] = None,
    seeds: Annotated[
        int, panel_option(help="Runs per cell, with seeds 0, 1, …", panel=TRAINING, min=1, max=MOST_SEEDS)
    ] = 1,
    data: Annotated[
        str,
        panel_option(
            help="Data set of table4, steps, fig6, gradients-conv4 and methods.",
            panel=DATA,
            complete=complete_data,
        ),
    ] = "miniimagenet",
    tasks: NewTasks = None,
    workers: Annotated[
        int,
        panel_option(
            help="Processes that train one run each, on the cores of the CPU or on all GPUs.",
            panel=COMPUTE,
            min=1,
        ),
    ] = 1,
    together: Annotated[
        int, panel_option(help="Number of runs that share a GPU in one process.", panel=COMPUTE, min=1)
    ] = 1,
    results: Annotated[
        Path | None, panel_option(help="Folder of records.", panel=OUTPUT, default="results in OUT")
    ] = None,
    train: Annotated[
        bool, panel_option(help="Train missing runs, or only show finished ones.", panel=TRAINING)
    ] = True,
    setting: Setting = None,
) -> None:
    """Reproduce tables and figures of the paper: train missing runs, show our numbers beside the paper's.

    The same command resumes a reproduction that was stopped.
    """
    from pathaware.cli.show import print_table
    from pathaware.training.provenance import revision
    from pathaware.training.tables import NOTHING
    from pathaware_research.paper import targets as paper
    from pathaware_research.paper.time_estimate import TrainingLength, parse_duration
    from pathaware_research.records import RecordStore

    revision()  # records name the code that runs now, whatever is committed until they are written
    for target in targets:
        if target not in (*paper.TARGETS, "all"):
            known = (*paper.TARGETS, "all")
            hint = did_you_mean(target, known)
            raise UsageError(f"{target!r} must be one of {', '.join(known)}{hint}", field="target")
    if workers > 1 and together > 1:
        raise UsageError("each worker trains one run; leave out --together", field="workers")
    _check_folder("out", out)
    if results is not None and train:
        _check_folder("results", results)
    paper.check_data(data)
    chosen = paper.TARGETS if "all" in targets else tuple(dict.fromkeys(targets))
    reproduction = paper.Reproduction(
        RecordStore(out, tasks, records=results),
        out,
        _print,
        seeds,
        TrainingLength(iterations, None if budget is None else parse_duration(budget)),
        together,
        workers,
        train,
        parse_settings(setting),
    )
    rows, made, missing = (only or (), columns or ()), False, dict[str, None]()
    try:
        try:
            reproduction.train_at_once(chosen, data, *rows)
        except UsageError as error:
            _print(error.message)  # the others are made, and what failed is tried again
        for target in chosen:
            try:
                table = reproduction.make(target, data, *rows)
            except UsageError as error:
                if len(chosen) == 1:
                    raise
                _print(f"{target} left out: {error.message}")  # the others are made
                continue
            if table:
                print_table(table)
                missing |= dict.fromkeys(paper.data_to_import(target, data, *rows))
            # The last column says how a row was trained.
            made = made or table is None or any(row.cells[-1] != NOTHING for row in table.rows)
    except KeyboardInterrupt:
        _print("interrupted; run the same command to resume")
        raise typer.Exit(130) from None
    for name in missing:
        _print(f"{name} is not imported; import it with: pathaware data import {name} --from FOLDER")
    if missing and train and not made:
        raise typer.Exit(1)


def _check_folder(name: str, folder: Path) -> None:
    """Refuse what cannot be a folder, before anything is trained."""
    try:
        there = next(path for path in (folder, *folder.parents) if path.exists())
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} cannot be a folder ({error})", field=name) from None
    if not there.is_dir():
        raise UsageError(f"{there} is a file; name a folder", field=name)
    try:
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror})", field=name) from None


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
