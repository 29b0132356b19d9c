"""Runs in worker processes. A run takes minutes to days, so a pool survives what happens meanwhile: a worker
that dies is replaced, and its run is resumed."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pathaware.sweep.run_store import PlannedRun, RunStore
from pathaware.sweep.training_worker import CONTROL, DIED, FAILED, PAUSE, STOPPED, Control, Task
from pathaware.sweep.worker_backends import ATTEMPTS, Backend

STOP_SECONDS = 20.0
"""Seconds in which a worker that was asked to stop can save its state before it is killed."""
REPORT = 120.0
"""Seconds between reports on the progress of runs."""


@dataclass(frozen=True)
class Ended:
    """`reason` says why the run failed; it is empty if the run is done or was asked to stop."""

    run: PlannedRun
    reason: str = ""


@dataclass
class _Running:
    run: PlannedRun
    future: Any
    attempt: int = 1


class WorkerPool:
    """Runs in the workers of a backend. Leaving the pool stops them, after they have saved their states."""

    def __init__(self, store: RunStore, backend: Backend, say: Callable[[str], None]) -> None:
        self.store, self.backend, self.say = store, backend, say
        self.control = Control(store.folder / CONTROL)
        self._running: dict[int, _Running] = {}
        self._asked: set[str] = set()

    def __enter__(self) -> WorkerPool:
        self.control.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.control.end()
        try:
            deadline = time.monotonic() + STOP_SECONDS
            while time.monotonic() < deadline and not all(
                each.future.done() for each in self._running.values()
            ):
                time.sleep(PAUSE)
        finally:  # also if Ctrl-C is pressed again
            self.backend.close()

    @property
    def size(self) -> int:
        return self.backend.size

    @property
    def free(self) -> bool:
        return len(self._running) < self.size

    @property
    def running(self) -> list[PlannedRun]:
        return [each.run for each in self._running.values()]

    def run(
        self,
        runs: Iterable[PlannedRun],
        on_ended: Callable[[Ended], None],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Train, evaluate and record these runs. One that fails does not stop the others.

        `meanwhile` is called every few minutes.
        """
        waiting, told = deque(runs), time.monotonic()
        while waiting or self._running:
            while waiting and self.free:
                self.submit(waiting.popleft())
            for ended in self.ended():
                on_ended(ended)
            if time.monotonic() > told + REPORT:
                told = time.monotonic()
                meanwhile()
            time.sleep(PAUSE)

    def submit(self, run: PlannedRun) -> None:
        slot = next(i for i in range(len(self._running) + 1) if i not in self._running)
        self._running[slot] = _Running(run, self._future(slot, run))

    def stop(self, run: PlannedRun) -> None:
        """Ask the worker of this run to save its state and stop."""
        self._asked.add(run.name)
        self.control.stop(run.name)

    def ended(self) -> list[Ended]:
        """The runs that ended since the last call. A run whose worker died is resumed by another one."""
        found = []
        for slot, each in list(self._running.items()):
            if not each.future.done():
                continue
            ending, reason = self._outcome(each)
            if ending in (FAILED, DIED):
                self.backend.renew(slot)
            if ending == STOPPED and each.run.name not in self._asked and self.control.error is not None:
                ending, reason = (
                    FAILED,
                    f"the sweep's folder cannot be written ({self.control.error.strerror})",
                )
            # A run that stopped unasked lost touch with a sweep that was suspended.
            if ending == DIED or (ending == STOPPED and each.run.name not in self._asked):
                each.attempt += ending == DIED
                each.future = self._future(slot, each.run)
            else:
                del self._running[slot]
                found.append(Ended(each.run, reason))
        return found

    def _outcome(self, each: _Running) -> tuple[str, str]:
        """How a run ended, and why if it failed."""
        try:
            ending, reason = each.future.result()
            return ending, reason
        except Exception as error:  # each backend has its own kinds
            codes = re.search(r"\{(.*)\}", str(error))
            reason = codes[1] if codes else (str(error).strip() or type(error).__name__).split("\n")[0]
            if each.attempt < ATTEMPTS:
                self.say(f"{each.run.name}: its worker process died ({reason}); another one resumes it")
                return DIED, ""
            return FAILED, f"its worker process died {each.attempt} times ({reason})"[:200]

    def _future(self, slot: int, run: PlannedRun) -> Any:
        store = replace(self.store, folder=self.store.folder.absolute())
        task = Task(store, run.name, run.config.to_dict(), self.control.sweep, self.backend.patience)
        return self.backend.submit(slot, task)
