"""Processes at work, one a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO

from pathaware.sweep.folder import Folder
from pathaware.sweep.point import Point
from pathaware.sweep.worker import STOPPED

PATIENCE = 20.0
"""Seconds in which a worker that was asked to stop can save its state before it is killed."""


@dataclass(frozen=True)
class Worker:
    point: Point
    place: int
    process: subprocess.Popen[str]


@dataclass(frozen=True)
class Ended:
    """`reason` says why the run failed; it is empty if it is trained and judged, or was told to stop."""

    point: Point
    reason: str = ""


class Crew:
    """As many workers as there are places. Leaving it stops them all."""

    def __init__(self, folder: Folder, places: Sequence[dict[str, str]]) -> None:
        self.folder, self.places = folder, places
        self.workers: list[Worker] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for worker in self.workers:
                _dismiss(worker.process)
            deadline = time.monotonic() + PATIENCE
            for worker in self.workers:
                with suppress(subprocess.TimeoutExpired):
                    worker.process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # also when nobody wants to wait that long
            for worker in self.workers:
                worker.process.kill()
                worker.process.wait()

    @property
    def idle(self) -> bool:
        return len(self.workers) < len(self.places)

    def start(self, point: Point) -> None:
        """In a session of its own: Ctrl-C is for us, and we tell the workers in a way that they can hear."""
        taken = {worker.place for worker in self.workers}
        place = next(i for i in range(len(self.places)) if i not in taken)
        order = {
            "config": point.config.to_dict(),
            "run": str(self.folder.run(point)),
            "record": str(self.folder.record(point)),
            "split": self.folder.split,
            "tasks": self.folder.judged(point),
        }
        with self.folder.log(point).open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pathaware.sweep.worker"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.places[place]},
                text=True,
                encoding="utf-8",
                start_new_session=True,
            )
        self.workers.append(Worker(point, place, process))
        with suppress(OSError):  # one that died at once says why in its log
            assert process.stdin is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()

    def dismiss(self, point: Point) -> None:
        """Ask the worker of this run to stop where it is."""
        for worker in self.workers:
            if worker.point == point:
                _dismiss(worker.process)

    def ended(self) -> list[Ended]:
        """Those that ended since this was last asked."""
        gone = [worker for worker in self.workers if worker.process.poll() is not None]
        self.workers = [worker for worker in self.workers if worker not in gone]
        for worker in gone:
            _dismiss(worker.process)
        return [Ended(worker.point, self._reason(worker)) for worker in gone]

    def _reason(self, worker: Worker) -> str:
        code = worker.process.returncode
        if code in (0, STOPPED):
            return ""
        if code < 0:
            return f"its process was ended by {signal.Signals(-code).name}"
        return self.folder.last_words(worker.point) or f"its process ended with code {code}"


def _dismiss(process: subprocess.Popen[str]) -> None:
    stdin: IO[str] | None = process.stdin
    if stdin is not None and not stdin.closed:
        with suppress(OSError):
            stdin.close()
