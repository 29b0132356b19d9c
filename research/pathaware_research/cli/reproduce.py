"""`pathaware reproduce TARGET…`: reproduce the paper's tables and figures."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryFile

import typer

from pathaware.cli.options import (
    COMPUTE,
    DATA,
    OUTPUT,
    TASKS,
    TRAINING,
    NewTasks,
    Setting,
    argument,
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
    targets: list[str] = argument(f"{TARGETS}.", "TARGET..."),
    out: Path = panel_option(Path("paper"), OUTPUT, "Folder for runs, records, tables and figures."),
    budget: str | None = panel_option(
        None,
        TRAINING,
        "Wall-clock time per target, such as 10m or 2h, with all --workers. All runs are shortened "
        "to fit, and the table states it. With --iterations, as many whole runs as fit are trained, the "
        "most informative first.",
        shown="none: train all iterations",
    ),
    iterations: int | None = panel_option(
        None, TRAINING, "Meta-iterations per run.", shown="the paper's", min=1
    ),
    only: list[str] | None = panel_option(
        None, TASKS, "Train and show only this row. Can be repeated.", shown="all rows", metavar="ROW"
    ),
    columns: list[str] | None = panel_option(
        None,
        TASKS,
        "Only this column, such as 'CIFAR-FS 5-shot' or cifar-fs-5shot. Can be repeated.",
        shown="all columns",
        metavar="COLUMN",
    ),
    seeds: int = panel_option(1, TRAINING, "Runs per cell, with seeds 0, 1, …", min=1, max=MOST_SEEDS),
    data: str = panel_option(
        "miniimagenet",
        DATA,
        "Data set of table4, steps, fig6, gradients-conv4 and methods.",
        complete=complete_data,
    ),
    tasks: NewTasks = None,
    workers: int = panel_option(
        1, COMPUTE, "Processes that train one run each, on the cores of the CPU or on all GPUs.", min=1
    ),
    together: int = panel_option(1, COMPUTE, "Number of runs that share a GPU in one process.", min=1),
    results: Path | None = panel_option(None, OUTPUT, "Folder of records.", shown="results in OUT"),
    train: bool = panel_option(True, TRAINING, "Train missing runs, or only show finished ones."),
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
