"""Experiments that answer one question each; their records are in `results/`.

    python -m studies.sine_gap --workers 2

A study that compares trained runs lists them in `RUNS`. `tools.documents` renders their records.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from pathaware.experiments.run_store import PlannedRun, RunStore

RESULTS = Path("results")


def train_runs(
    runs: Sequence[PlannedRun], tasks: int, description: str | None, records: Path = RESULTS
) -> None:
    """Train, evaluate and record the runs of a study that have no record yet, as the command line asks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="processes, one run each")
    parser.add_argument("--out", type=Path, default=Path("paper"), help="folder of the runs")
    parser.add_argument("--records", type=Path, default=records, help="folder of the records")
    parser.add_argument("--only", action="append", default=[], help="part of the name of a run")
    options = parser.parse_args()
    store = RunStore(options.out, records=options.records, tasks=tasks)
    store.create()
    chosen = [run for run in runs if all(part in run.name for part in options.only)]
    missing = [run for run in chosen if store.result(run) is None]
    print(f"{len(missing)} of {len(chosen)} runs to train", flush=True)
    with ProcessPoolExecutor(options.workers) as pool:
        waiting = {pool.submit(train_one, store, run): run for run in missing}
        for each in as_completed(waiting):
            each.result()
            print(f"{waiting[each].name}: done", flush=True)


def train_one(store: RunStore, run: PlannedRun) -> None:
    store.train_unless_stopped(run, lambda: False)
