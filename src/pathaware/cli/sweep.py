"""`pathaware sweep FILE`: many runs from one file, and one table of their results."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from pathaware.core.errors import UsageError

TABLE = "summary"


def sweep(
    file: Annotated[Path, typer.Argument(help="TOML: a configuration and what to vary.", metavar="FILE")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs, records and the table (default: sweeps/FILE).")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Runs at a time (default: one per GPU, or what the threads of a CPU allow; on a cluster one "
            "per worker).",
            min=1,
        ),
    ] = None,
    devices: Annotated[
        str | None, typer.Option(help="GPUs to use, such as cuda:0,cuda:1 (default: all).")
    ] = None,
    split: Annotated[
        str, typer.Option(help="Classes to evaluate on: val, or test once all is chosen.")
    ] = "val",
    tasks: Annotated[
        int | None,
        typer.Option(help="New tasks to evaluate on (default: 1000 waves, 600 episodes).", min=2),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="Where workers are: loky (this machine), dask or ray (a cluster).")
    ] = "loky",
    cluster: Annotated[
        str | None,
        typer.Option(help="Address of the cluster, such as tcp://host:8786, or a Dask scheduler file."),
    ] = None,
) -> None:
    """Train every combination in worker processes. The same command resumes a sweep that was stopped."""
    from pathaware.cli.show import print_table
    from pathaware.experiments.report.table_files import write_table
    from pathaware.experiments.run_store import RunStore
    from pathaware.experiments.sweep.grid import run_grid
    from pathaware.experiments.sweep.plan import SweepPlan
    from pathaware.experiments.sweep.search import Search, optuna
    from pathaware.experiments.sweep.summary import summary
    from pathaware.experiments.sweep.worker_pool import WorkerPool, open_backend

    if split not in ("val", "test"):
        raise UsageError(f"{split!r} must be one of val, test", field="split")
    plan = SweepPlan.read(file)
    if plan.trials:
        if split != "val":
            raise UsageError("a search chooses by validation; use evaluate for what it finds", field="split")
        optuna()
    runs = list(plan.grid())
    folder = out or Path("sweeps") / file.stem
    store = RunStore(folder, tasks=tasks, split=split, suffix=f"-{split}", exact=True)
    if not plan.trials:
        for run in runs:
            store.check_settings(run)
    with closing(open_backend(backend, cluster, runs, workers, devices)) as opened:
        store.create()
        with _locked(folder):
            pool = WorkerPool(store, opened, _say)
            try:
                outcomes = (
                    Search(plan, store, _say).run(pool) if plan.trials else run_grid(runs, store, pool, _say)
                )
            except KeyboardInterrupt:
                _say("interrupted; the same command resumes it")
                raise typer.Exit(130) from None
    table = summary(file.stem, outcomes, store)
    print_table(table)
    for path in write_table(table, folder, TABLE):
        _say(str(path))
    if all(outcome.result is None for outcome in outcomes):
        raise typer.Exit(1)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One sweep at a time in a folder: two would train the same runs over each other."""
    from pathaware.training.run_folder import FolderLock

    lock = FolderLock(folder, f"another sweep is at work in {folder}", field="out")
    try:
        yield
    finally:
        lock.release()


def _say(line: str) -> None:
    print(" ".join(line.split()), file=sys.stderr, flush=True)
