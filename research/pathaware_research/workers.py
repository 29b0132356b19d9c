"""Runs in worker processes of this machine, which tables and studies train."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pathaware.core.errors import UsageError
from pathaware.data.store import counted
from pathaware.sweep.run_store import PlannedRun
from pathaware.sweep.worker_backends import LokyBackend, device_slots
from pathaware.sweep.worker_pool import Ended, WorkerPool
from pathaware.training.run_files import FolderLock
from pathaware_research.experiments import RunStore


def train_in_workers(
    store: RunStore,
    runs: Sequence[PlannedRun],
    workers: int,
    say: Callable[[str], None],
    on_done: Callable[[PlannedRun], None],
    time_left: Callable[[], str] = lambda: "",
) -> None:
    """Train, evaluate and record these runs in processes of this machine, on its cores or its GPUs.

    Every few minutes `say` is called with the progress of each run and `time_left`. If some failed, an error
    at the end names their logs.
    """
    failed: list[str] = []

    def on_ended(ended: Ended) -> None:
        if ended.reason:
            failed.append(ended.run.name)
            say(f"{ended.run.name}: failed: {ended.reason}")
        else:
            on_done(ended.run)

    def report() -> None:
        running = (f"{run.name} {100 * store.trained_fraction(run):.0f} %" for run in pool.running)
        say("; ".join(filter(None, [f"trained: {', '.join(running)}", time_left()])))

    if not runs:
        return
    for run in runs:
        store.check_settings(run)
    store.create()
    folder = store.folder
    backend = LokyBackend(device_slots(runs, min(workers, len(runs)), None))
    with (
        FolderLock(folder, f"other workers are training in {folder}", field="out"),
        WorkerPool(store, backend, say) as pool,
    ):
        pool.run(runs, on_ended, report)
    if failed:
        logs = ", ".join(str(folder / "logs" / f"{name}.log") for name in failed[:3])
        raise UsageError(f"{len(failed)} of {counted(len(runs), 'run')} failed; see {logs}")
