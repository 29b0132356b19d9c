"""A file layer that fails: the Nth change in a folder raises an error, or the process is killed there.

Commands run in processes forked from one that has imported everything, so that a case takes a fraction of a
second. Reading is counted only if asked for: only what changes a folder can damage it.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.forked import CONTEXT

Fault = Literal["count", "ENOSPC", "EIO", "EROFS", "EACCES", "kill"]
FAULTS: list[Fault] = ["ENOSPC", "EIO", "EROFS", "kill"]
FREEING = ("rmdir", "unlink", "remove", "truncate", "chmod")
"""Changes that need no space, so that a full disk allows them."""
CHANGES = (*FREEING, "mkdir", "rename", "replace", "fsync", "sendfile")


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code (negative: the signal), standard error, and operations counted."""

    code: int
    errors: str
    operations: int

    @property
    def lines(self) -> list[str]:
        return self.errors.splitlines()


class Layer:
    """Counts changes under `folder`, with `reads` also files opened to be read, and fails from `at` on."""

    def __init__(self, folder: Path, fault: Fault, at: int, reads: bool = False) -> None:
        self.folder, self.fault, self.at, self.reads = str(folder), fault, at, reads
        self.count = 0
        self.paths: dict[int, str] = {}

    def change(self, path: object, how: str = "write", folder: int | None = None) -> None:
        """A change of a file, whose path may be a descriptor, or relative to that of a folder."""
        text = self.paths.get(path, "") if isinstance(path, int) else os.fsdecode(path)  # type: ignore[arg-type]
        text = os.path.join(self.paths.get(folder or 0, ""), text)
        if not os.path.abspath(text).startswith(self.folder):
            return
        self.count += 1
        if self.fault == "count" or self.count < self.at:
            return
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "ENOSPC" and how in FREEING:
            return
        # A full or broken disk stays so; a read-only one too.
        number = getattr(errno, self.fault)
        raise OSError(number, os.strerror(number), text)

    def install(self) -> None:
        for name in (name for name in CHANGES if hasattr(os, name)):  # sendfile: not on every system
            setattr(os, name, self._counted(getattr(os, name)))
        opened, low, raw = io.open, os.open, io.FileIO

        def opening(file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
            writes = set(mode) & set("wax+")
            if not isinstance(file, int) and (writes or self.reads):
                self.change(file)
            result = opened(file, mode, *rest, **options)
            if not writes:
                return result
            if not isinstance(file, int):
                self.paths[result.fileno()] = os.fsdecode(file)
            return _Writing(result, self.paths.get(result.fileno(), ""), self)

        def opening_low(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            folder = options.get("dir_fd")
            if self.reads or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.change(path, folder=folder)
            descriptor = low(path, flags, *rest, **options)
            self.paths[descriptor] = os.path.join(self.paths.get(folder or 0, ""), os.fsdecode(path))
            return descriptor

        io.open = builtins.open = opening  # type: ignore[assignment]
        io.FileIO = lambda *a: _Writing(raw(*a), self.paths[a[0]], self)  # type: ignore[assignment,misc]
        os.open = opening_low  # type: ignore[assignment]
        if self.reads:
            import safetensors

            safetensors.safe_open = self._counted(safetensors.safe_open)

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(path: Any, *rest: Any, **options: Any) -> Any:
            folder = options.get("dir_fd", options.get("src_dir_fd"))
            self.change(path, function.__name__, folder)
            return function(path, *rest, **options)

        return counted


class _Writing:
    """A file open for writing, whose writes are counted."""

    def __init__(self, file: Any, path: str, layer: Layer) -> None:
        self._file, self._path, self._layer = file, path, layer

    def write(self, data: Any) -> Any:
        self._layer.change(self._path)
        return self._file.write(data)

    def truncate(self, *arguments: Any) -> Any:
        self._layer.change(self._path)
        return self._file.truncate(*arguments)

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class HereBackend:
    """A sweep's worker in the process of the sweep, so that the layer sees what it writes."""

    size, patience = 1, 10.0

    def submit(self, slot: int, task: Any) -> Any:
        from concurrent.futures import Future

        from pathaware.sweep.training_worker import work

        future: Future[Any] = Future()
        with redirect_stderr(io.StringIO()):  # a worker's goes to a file
            future.set_result(work(task))
        return future

    def renew(self, slot: int) -> None:
        """There is no process to replace."""

    def close(self) -> None:
        """There is no process to end."""


def _prepare(command: str) -> None:
    """Replace what is not about files: worker processes, and waiting for visitors."""
    if command == "sweep":
        from pathaware.sweep import worker_backends

        worker_backends.open_backend = lambda *_: HereBackend()
    if command == "serve":
        from pathaware.serve import server

        server.serve = lambda app, bound, limits, ready: bound.close() or ready() or 0  # type: ignore[func-returns-value]


def _child(arguments: list[str], folder: Path, fault: Fault, at: int, reads: bool, pipe: Any) -> None:
    import torch

    from pathaware.cli import main
    from pathaware.training.problems import Sine

    torch.set_num_threads(1)
    Sine.evaluation_tasks = 2  # what follows the training changes no file
    os.chdir(folder.parent)
    _prepare(arguments[0])
    layer = Layer(folder, fault, at, reads)
    layer.install()
    errors = io.StringIO()
    code = 0
    try:
        with redirect_stderr(errors), redirect_stdout(io.StringIO()):
            main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    except BaseException as error:  # a traceback in the terminal
        import traceback

        errors.write("".join(traceback.format_exception(error)))
        code = 70
    pipe.send((code, errors.getvalue(), layer.count))
    pipe.close()
    os._exit(0)


def run(
    arguments: list[str], folder: Path, fault: Fault = "count", at: int = 0, *, reads: bool = False
) -> Ended:
    """Run a command in a process of its own; the change with number `at` under `folder` fails."""
    here, there = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_child, args=(arguments, folder, fault, at, reads, there))
    process.start()
    there.close()
    try:
        code, errors, count = here.recv()
    except EOFError:  # killed
        process.join()
        return Ended(process.exitcode or 0, "", at)
    process.join()
    return Ended(code, errors, count)
