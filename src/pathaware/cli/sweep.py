"""`pathaware sweep FILE`: train many runs that one file describes, and compare them in one table."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import typer

from pathaware.cli.options import COMPUTE, OUTPUT, TASKS, NewTasks, argument, examples, panel_option
from pathaware.core.errors import UsageError

EXAMPLES = examples(
    "pathaware sweep rates.toml --workers 2",
    "pathaware sweep rates.toml --backend dask --cluster tcp://localhost:8786",
)
TABLE = "summary"


def sweep(
    file: Path = argument("TOML file: a configuration and the settings to vary.", "FILE"),
    out: Path | None = panel_option(
        None, OUTPUT, "Folder for runs, records and the table.", shown="sweeps/ and the name of FILE"
    ),
    workers: int | None = panel_option(
        None,
        COMPUTE,
        "Number of runs at a time.",
        shown="one per GPU or cluster worker, else as many as the CPU's threads allow",
        min=1,
    ),
    devices: str | None = panel_option(None, COMPUTE, "GPUs to use, such as cuda:0,cuda:1.", shown="all"),
    split: str = panel_option(
        "val", TASKS, "Split to evaluate on: val, or test once all settings are chosen."
    ),
    tasks: NewTasks = None,
    backend: str = panel_option(
        "loky", COMPUTE, "Where workers run: loky (this machine), dask or ray (a cluster)."
    ),
    cluster: str | None = panel_option(
        None, COMPUTE, "Address of the cluster, such as tcp://host:8786, or a Dask scheduler file."
    ),
) -> None:
    """Train every combination of settings in worker processes.

    The same command resumes a sweep that was stopped.
    """
    from pathaware.cli.show import print_table
    from pathaware.report.table_files import write_table
    from pathaware.sweep.plan import SweepPlan
    from pathaware.sweep.run_store import RunStore
    from pathaware.sweep.search import Search, optuna, run_grid
    from pathaware.sweep.summary import summary
    from pathaware.sweep.worker_backends import open_backend
    from pathaware.sweep.worker_pool import WorkerPool
    from pathaware.training.run_files import FolderLock

    if split not in ("val", "test"):
        raise UsageError(f"{split!r} must be one of val, test", field="split")
    plan = SweepPlan.read(file)
    if plan.trials:
        if split != "val":
            raise UsageError(
                "must be val for a search; evaluate the best run on test with `pathaware evaluate`",
                field="split",
            )
        optuna()
    runs = list(plan.grid())
    folder = out or Path("sweeps") / file.stem
    store = RunStore(folder, tasks=tasks, split=split, suffix=f"-{split}")
    if not plan.trials:
        for run in runs:
            store.check_settings(run)
    with closing(open_backend(backend, cluster, runs, workers, devices)) as opened:
        store.create()
        # Two sweeps in a folder would overwrite each other's runs.
        with FolderLock(folder, f"another sweep is running in {folder}", field="out"):
            pool = WorkerPool(store, opened, _print)
            try:
                outcomes = (
                    Search(plan, store, _print).run(pool)
                    if plan.trials
                    else run_grid(runs, store, pool, _print)
                )
            except KeyboardInterrupt:
                _print("interrupted; run the same command to resume")
                raise typer.Exit(130) from None
    table = summary(file.stem, outcomes, store)
    print_table(table)
    for path in write_table(table, folder, TABLE):
        _print(str(path))
    if all(outcome.result is None for outcome in outcomes):
        raise typer.Exit(1)


def _print(line: str) -> None:
    print(" ".join(line.split()), file=sys.stderr, flush=True)
