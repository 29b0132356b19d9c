"""Starts the processes of a world, and lets none of them outlive a test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **more}


def launch(size: int, *command: str, cwd: Path, timeout: float = 100) -> None:
    """Run `python -m command` in so many processes that torchrun's variables tell of each other."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    running = []
    for rank in range(size):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
        env = environment(**own, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        running.append(subprocess.Popen([sys.executable, "-m", *command], cwd=cwd, env=env))
    ends = time.monotonic() + timeout
    try:
        codes = [process.wait(max(0.1, ends - time.monotonic())) for process in running]
    finally:
        end(process.pid for process in running)
        for process in running:
            process.wait()
    assert codes == [0] * size


def torchrun(*arguments: str, cwd: Path, timeout: float = 100, **env: str) -> tuple[int, str, str]:
    """Exit code and what was written to standard output and error."""
    command = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "localhost:0", *arguments]
    process = subprocess.Popen(
        command, cwd=cwd, env=environment(**env), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        output, errors = process.communicate(timeout=timeout)
    finally:
        end([*descendants(process.pid), process.pid])  # its workers are no part of its process group
        process.wait()
    return process.returncode, output, errors


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            found += [*descendants(int(child)), int(child)]
    return found


def end(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
