"""Trains all combinations of a sweep."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from pathaware.data.store import counted
from pathaware.experiments.run_store import PlannedRun, RunStore
from pathaware.experiments.sweep.summary import Outcome
from pathaware.experiments.sweep.worker import PAUSE
from pathaware.experiments.sweep.worker_pool import WorkerPool


def run_grid(
    runs: Sequence[PlannedRun], store: RunStore, pool: WorkerPool, say: Callable[[str], None]
) -> list[Outcome]:
    """Train and evaluate the runs without a result. One that fails does not stop the others."""
    waiting = deque(run for run in runs if store.result(run) is None)
    failed: dict[str, str] = {}
    done = len(runs) - len(waiting)
    with pool:
        at_once = min(pool.size, len(runs))
        say(f"{counted(len(runs), 'run')}, {len(waiting)} to train or evaluate, {at_once} at a time")
        while waiting or pool.running:
            while waiting and pool.free:
                pool.submit(waiting.popleft())
            for ended in pool.ended():
                done += 1
                if ended.reason:
                    failed[ended.run.name] = f"failed: {ended.reason}"
                say(f"{done} of {len(runs)}: {ended.run.name}: {ended.reason or 'done'}")
            time.sleep(PAUSE)
    return [Outcome(run, store.result(run), failed.get(run.name, "")) for run in runs]
