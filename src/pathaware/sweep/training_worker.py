"""One run in a worker process, and the file by which a sweep tells its workers to stop.

The file is in the sweep's folder and changes every second. It works wherever the run folders can be reached,
on any operating system, and also when the sweep itself is killed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pathaware.core.errors import RunError, UsageError
from pathaware.core.reading import read_file
from pathaware.core.settings import trust
from pathaware.core.writing import make_folder, open_to_write, remove_file, replace_file
from pathaware.sweep.run_store import PlannedRun, RunStore
from pathaware.training.config import Config

PAUSE = 0.1
"""Seconds between polls of the workers."""
BEAT = 1.0
"""Seconds between heartbeats of the sweep."""
CONTROL = "sweep.active"
DONE, STOPPED, FAILED, DIED = "done", "stopped", "failed", "died"


class Control:
    """The file with the heartbeat of a sweep and the runs to stop.

    It changes every second; workers stop when it is gone, is of another sweep, or stays the same for long.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.sweep = path, uuid.uuid4().hex
        self.error: OSError | None = None
        """Why the file could not be written the last time."""
        self._stopped: list[str] = []
        self._beats, self._lock, self._end = 0, threading.Lock(), threading.Event()

    def start(self) -> None:
        self._write()
        if self.error is not None:
            raise UsageError(f"{self.path.parent} cannot be written ({self.error.strerror})", field="out")
        threading.Thread(target=self._keep_writing, daemon=True).start()

    def stop(self, name: str) -> None:
        """Ask the worker of this run to stop."""
        self._stopped.append(name)
        self._write()

    def end(self) -> None:
        """Ask all workers to stop."""
        with self._lock, suppress(OSError):
            self._end.set()
            remove_file(self.path, self.path.parent)

    def _keep_writing(self) -> None:
        while not self._end.wait(BEAT):
            self._write()

    def _write(self) -> None:
        with self._lock:
            if self._end.is_set():
                return
            self._beats += 1
            text = json.dumps({"sweep": self.sweep, "beat": self._beats, "stop": self._stopped})
            try:
                replace_file(self.path, text, self.path.parent, durable=False)
                self.error = None
            except OSError as error:  # on Windows, while a worker reads it; there is a next time
                self.error = error


@dataclass
class StopCheck:
    """Tells a worker whether to stop; cheap enough to be asked after every iteration.

    After `patience` seconds without a change the sweep is taken for dead, and `orphaned` is True.
    """

    path: Path
    sweep: str
    name: str
    patience: float
    orphaned: bool = False
    _text: str = ""
    _changed: float = 0.0
    _next: float = 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + 2 * PAUSE
        text = self._text
        try:
            text = read_file(self.path).decode()
        except FileNotFoundError:
            return True
        except OSError:  # it is being replaced
            pass
        if text != self._text or not self._changed:
            self._text, self._changed = text, now
        self.orphaned = now - self._changed > self.patience
        content = json.loads(text or "{}")
        another = content.get("sweep", self.sweep) != self.sweep
        return self.orphaned or another or self.name in content.get("stop", ())


@dataclass(frozen=True)
class Task:
    """A run for a worker process, in plain tables: unpickling a plug-in would import its module."""

    store: RunStore
    name: str
    tables: Mapping[str, Any]
    sweep: str
    patience: float


_one_at_a_time = threading.Lock()  # in a Dask worker of several threads


def work(task: Task) -> tuple[str, str]:
    """Train and evaluate one run in a worker process: how it ended, and why if it failed."""
    parent = os.getppid()
    with _one_at_a_time:
        stop = StopCheck(task.store.folder / CONTROL, task.sweep, task.name, task.patience)
        if stop():
            return STOPPED, ""
        with _output_to(task.store.folder, f"{task.name}.log"):
            try:
                trust(task.tables)
                planned = PlannedRun(task.name, Config.from_dict(task.tables))
                finished = task.store.complete(planned, stop, task.patience)
            except (UsageError, RunError) as error:
                reason = error.message if isinstance(error, UsageError) else str(error)
                print(f"error: {reason}", file=sys.stderr)
                return FAILED, reason[:200]
            except Exception as error:
                traceback.print_exc()
                reason = traceback.format_exception_only(error)[-1].strip().split("\n")[0]
                return FAILED, reason[:200]
            finally:
                if torch.cuda.is_initialized():
                    torch.cuda.empty_cache()
    if stop.orphaned and os.getppid() != parent:
        os._exit(1)  # nobody is left to take the result, or to end this process
    return (DONE, "") if finished else (STOPPED, "")


@contextmanager
def _output_to(folder: Path, name: str) -> Iterator[None]:
    """Send what this process prints, libraries and compilers included, to a file in `logs`."""
    make_folder(folder / "logs", folder)
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    with open_to_write(folder / "logs" / name, folder) as log:
        for stream in kept:
            os.dup2(log.fileno(), stream)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for stream, copy in kept.items():
                os.dup2(copy, stream)
                os.close(copy)
