"""Experiments that answer one question each; their records are in `results/`.

    python -m pathaware_research.studies.sine_gap --workers 2

A study that compares trained runs lists them in `RUNS`. `pages.documents` renders their records.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pathaware.sweep.run_store import PlannedRun
from pathaware.training.presets import DIRECT
from pathaware_research.records import RESULTS, RecordStore
from pathaware_research.workers import train_in_workers


def train_runs(runs: Sequence[PlannedRun], tasks: int, description: str | None) -> None:
    """Train, evaluate and record the runs of a study that have no record yet, as the command line asks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="processes, one run each")
    parser.add_argument("--out", type=Path, default=Path("paper"), help="folder of the runs")
    parser.add_argument("--records", type=Path, default=RESULTS, help="folder of the records")
    parser.add_argument("--only", action="append", default=[], help="part of the name of a run")
    options = parser.parse_args()
    store = RecordStore(options.out, records=options.records, tasks=tasks)
    chosen = [run for run in runs if all(part in run.name for part in options.only)]
    missing = [run for run in chosen if store.result(run) is None]
    _print(f"{len(missing)} of {len(chosen)} runs to train")
    train_in_workers(store, missing, options.workers, _print, lambda run: _print(f"{run.name}: done"))


def with_q_learned_directly(tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The same tables, but PAMELA's Q is the step size itself, as in all runs before version 0.3."""
    own = DIRECT if tables["method"]["name"] == "pamela" else {}
    return {**tables, "method": {**tables["method"], **own}}


def _print(line: str) -> None:
    print(line, flush=True)
