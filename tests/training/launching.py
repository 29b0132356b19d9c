"""Starts processes that start others, and ends all of them with the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]


def launch(*command: str, cwd: Path, timeout: float = 300, **more: str) -> tuple[str, str]:
    """Run `python -m command`; return standard output and error."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        **more,
    }
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-m", *command], cwd=cwd, env=environment, **pipes) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            end([process.pid, *descendants(process.pid)])
            raise
    assert process.returncode == 0, errors
    return output, errors


def descendants(pid: int) -> list[int]:
    """The processes below `pid`, by parent, since torchrun starts each worker in its own group."""
    found: list[int] = []
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def end(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
