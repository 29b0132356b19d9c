"""Where runs are trained: each worker has its GPU, or its share of the CPU's threads."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

import torch

from pathaware.core.errors import UsageError
from pathaware.core.settings import at_least
from pathaware.experiments.run_store import Result
from pathaware.experiments.sweep.plan import Point
from pathaware.experiments.sweep.worker import STOPPED
from pathaware.training.run_folder import CONFIG, FolderLock, Run

_FREE = ("auto", "cuda")


def places(points: Sequence[Point], workers: int | None, devices: str | None) -> list[dict[str, str]]:
    """A worker each: what to change in its environment.

    A run's configuration does not say on which GPU it was trained, so that it can be continued on another;
    its process sees no other one instead.
    """
    if workers is not None:
        at_least(1, workers=workers)
    gpus = _gpus(points, devices)
    threads = torch.get_num_threads()
    wanted = max(point.config.training.threads for point in points)
    count = workers or len(gpus) or max(1, threads // (wanted or threads))
    share = str(max(1, threads // count))
    common = {"OMP_NUM_THREADS": share, "MKL_NUM_THREADS": share}
    seen = [{"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]} if gpus else {} for i in range(count)]
    return [{**common, **each} for each in seen]


def _gpus(points: Sequence[Point], devices: str | None) -> list[str]:
    """The names by which CUDA knows the chosen GPUs; none where runs choose for themselves or need none."""
    asked = {point.config.training.device for point in points}
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    chosen = list(range(there)) if devices is None else [_index(d, there) for d in devices.split(",")]
    if not asked <= set(_FREE):
        if devices is not None:
            other = sorted(asked - set(_FREE))[0]
            raise UsageError(f"these runs have training.device = {other!r}; let it be auto", field="devices")
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(there)]
    return [names[i].strip() for i in chosen]


def _index(device: str, there: int) -> int:
    found = re.fullmatch(r"cuda:([0-9]{1,4})", device.strip(), re.ASCII)
    if not found:
        raise UsageError(f"{device!r} is not of the form cuda:N; as cuda:0,cuda:1", field="devices")
    if int(found[1]) >= there:
        raise UsageError(f"{device} is not there; this machine has {there} GPUs", field="devices")
    return int(found[1])


# The folder of a sweep: runs, what they reached, and what their processes said.


@dataclass(frozen=True)
class Folder:
    """`runs/NAME`, `results/NAME-val.json` and `logs/NAME.log`. Runs are judged on `tasks` tasks of `split`,
    by default as many as the problem wants."""

    path: Path
    split: str = "val"
    tasks: int | None = None

    def run(self, point: Point) -> Path:
        return self.path / "runs" / point.name

    def record(self, point: Point) -> Path:
        return self.path / "results" / f"{point.name}-{self.split}.json"

    def log(self, point: Point) -> Path:
        return self.path / "logs" / f"{point.name}.log"

    def judged(self, point: Point) -> int:
        return self.tasks or point.config.problem.evaluation_tasks

    def make(self) -> None:
        try:
            for name in ("runs", "results", "logs"):
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.path} cannot be written ({error})", field="out") from None

    def must_fit(self, point: Point) -> None:
        """A run that is there must be of this sweep: nothing is overwritten."""
        folder = self.run(point)
        if (folder / CONFIG).exists() and Run.open(folder).config != point.config:
            raise UsageError(
                f"{folder} holds a run of other settings; name a new folder or remove it", field="out"
            )

    def result(self, point: Point) -> Result | None:
        """What the run reached, if it was judged as it is asked for now; a cut-off record does not count."""
        try:
            record = json.loads(self.record(point).read_text(encoding="utf-8"))
            as_asked = (record["config"], record["result"]["tasks"])
            return Result.of(record) if as_asked == (point.config.to_dict(), self.judged(point)) else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def last_words(self, point: Point) -> str:
        """Why a run failed, by the last line that its process wrote."""
        try:
            lines = self.log(point).read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            lines = []
        said = [line.strip() for line in lines if line.strip()]
        return said[-1].removeprefix("error: ")[:200] if said else ""


# One sweep at a time in a folder: two would train the same runs over each other.


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    lock = FolderLock(folder, f"--out: another sweep is at work in {folder}")
    try:
        yield
    finally:
        lock.release()


# Processes at work, one a run.


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
                [sys.executable, "-m", "pathaware.experiments.sweep.worker"],
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
