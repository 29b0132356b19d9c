"""Commands in processes forked from one that has imported everything: real processes that start at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.preloaded"])


class Output:
    """What a process writes to a pipe, read by a thread."""

    def __init__(self) -> None:
        self.end, self.other = CONTEXT.Pipe(duplex=False)
        self._bytes = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while part := os.read(self.end.fileno(), 65536):
            self._bytes += part

    @property
    def text(self) -> str:
        return self._bytes.decode("utf-8", "replace")

    def close(self) -> None:
        self._thread.join(10)
        self.end.close()


class Command:
    """`pathaware ARGUMENTS` in its own process group and in `folder`.

    `before` is called in the process first, for example to limit its resources.
    """

    def __init__(self, arguments: list[str], folder: Path, before: Callable[[], object] = os.getpid) -> None:
        self._out, self._err = Output(), Output()
        pipes = (self._out.other, self._err.other)
        self.process = CONTEXT.Process(target=_run, args=(arguments, folder, pipes, before))
        self.process.start()
        for pipe in pipes:
            pipe.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def out(self) -> str:
        return self._out.text

    @property
    def err(self) -> str:
        return self._err.text

    def wait_until(self, condition: Callable[[], bool], seconds: float = 200) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.is_alive(), self.err
            assert time.monotonic() < deadline, self.err
            time.sleep(0.02)

    def send(self, signum: int) -> None:
        os.kill(self.pid, signum)

    def wait(self, seconds: float = 200) -> int:
        """Return the exit code, negative for a signal."""
        self.process.join(seconds)
        code = self.process.exitcode
        if code is None:
            self.process.kill()
            raise AssertionError(f"still running after {seconds} s: {self.err}")
        self._out.close()
        self._err.close()
        return code


def _run(
    arguments: list[str], folder: Path, pipes: tuple[Connection, Connection], before: Callable[[], object]
) -> None:
    from pathaware.cli import main

    os.setpgid(0, 0)
    os.chdir(folder)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the server of forked processes ignores it
    for descriptor, pipe in zip((1, 2), pipes, strict=True):
        os.dup2(pipe.fileno(), descriptor)
        pipe.close()
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", buffering=1)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1)
    before()
    main(arguments)
