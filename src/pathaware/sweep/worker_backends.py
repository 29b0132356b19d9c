"""Where worker processes are: loky's on this machine, each with its GPU, or those of a Dask or Ray cluster.

Each worker on this machine is a loky executor of one process: it has its own GPU, and if it is killed, only
its own run has to be resumed. `joblib.Parallel` has one executor with one environment for all workers, and
ends all runs when one process is killed.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import torch

from pathaware.core.errors import UsageError
from pathaware.core.settings import at_least, at_most
from pathaware.sweep.run_store import PlannedRun
from pathaware.sweep.training_worker import Task, work

ATTEMPTS = 3
"""How often a run is given to a worker if workers die with it."""
BACKENDS = ("loky", "dask", "ray")
MOST_WORKERS = 10_000


class Backend(Protocol):
    """Submits tasks to worker processes, which stop after `patience` seconds without a heartbeat."""

    patience: float

    @property
    def size(self) -> int:
        """The number of runs at a time."""
        ...

    def submit(self, slot: int, task: Task) -> Any:
        """A future; `slot` is the smallest number that is free."""
        ...

    def renew(self, slot: int) -> None:
        """Replace a worker process that died, or that may be in a bad state."""
        ...

    def close(self) -> None:
        """End what is still running."""
        ...


class LokyBackend:
    """A worker process on this machine per slot, each with the environment variables of its slot."""

    patience = 10.0

    def __init__(self, slots: Sequence[Mapping[str, str]]) -> None:
        self.slots = slots
        self.loky: Any = import_module("joblib.externals.loky")
        self.executors: dict[int, Any] = {}

    @property
    def size(self) -> int:
        return len(self.slots)

    def submit(self, slot: int, task: Task) -> Any:
        if slot not in self.executors:
            self.executors[slot] = self.loky.ProcessPoolExecutor(
                max_workers=1, timeout=60, initializer=_ignore_interrupts, env=dict(self.slots[slot])
            )
        return self.executors[slot].submit(work, task)

    def renew(self, slot: int) -> None:
        if slot in self.executors:
            self.executors.pop(slot).shutdown(wait=True, kill_workers=True)

    def close(self) -> None:
        for slot in list(self.executors):
            self.renew(slot)


def _ignore_interrupts() -> None:
    """Ctrl-C in a terminal reaches all processes; the sweep itself asks its workers to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class DaskBackend:
    """The workers of a Dask cluster; each process of it trains one run at a time."""

    patience = 120.0

    def __init__(self, address: str, workers: int | None) -> None:
        distributed = require_package(
            "distributed", "dask", "in a clone of pathaware: pip install '.[cluster]'"
        )
        try:
            where = {"scheduler_file": address} if Path(address).is_file() else {"address": _reached(address)}
            self.client: Any = distributed.Client(**where, timeout=20, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise _unreachable(address, error) from None
        self.workers = workers
        self._size, self._counted = 1, -10.0

    @property
    def size(self) -> int:
        """Workers may join and leave; while there is none, one run waits for the first."""
        if time.monotonic() > self._counted + 2:
            self._size = max(1, len(self.client.nthreads()))
            self._counted = time.monotonic()
        return min(self._size, self.workers or self._size)

    def submit(self, slot: int, task: Task) -> Any:
        return self.client.submit(work, task, key=f"{task.name}-{uuid.uuid4().hex[:8]}", pure=False)

    def renew(self, slot: int) -> None:
        """The cluster replaces its own workers."""

    def close(self) -> None:
        self.client.close()


def _reached(address: str) -> str:
    """The address, if something listens there: a Dask client that fails to connect is slow to give up."""
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    if parts.scheme not in ("tcp", "tls", "ws", "wss") or not parts.hostname or not parts.port:
        raise ValueError("it must be such as tcp://host:8786")
    socket.create_connection((parts.hostname, parts.port), timeout=10).close()
    return address


def _unreachable(address: str, error: Exception) -> UsageError:
    reason = str(error).split("\n")[0] or type(error).__name__
    return UsageError(f"{address} cannot be reached ({reason})", field="cluster")


class RayBackend:
    """The workers of a Ray cluster, with one GPU each if it has some."""

    patience = 120.0

    def __init__(self, address: str | None, workers: int | None) -> None:
        self.ray: Any = require_package("ray", "ray", "pip install ray")
        try:
            self.ray.init(address=address or "auto", log_to_driver=False)
        except (OSError, ValueError) as error:
            raise _unreachable(address or "auto", error) from None
        resources = self.ray.cluster_resources()
        gpus, cpus = int(resources.get("GPU", 0)), int(resources.get("CPU", 1))
        options = {"num_cpus": 1, "num_gpus": 1 if gpus else 0, "max_retries": ATTEMPTS - 1}
        self.work = self.ray.remote(**options)(work)
        self.size = min(gpus or cpus, workers or gpus or cpus)

    def submit(self, slot: int, task: Task) -> Any:
        return self.work.remote(task).future()

    def renew(self, slot: int) -> None:
        """The cluster replaces its own workers."""

    def close(self) -> None:
        self.ray.shutdown()


def require_package(name: str, needed_by: str, install: str, field: str | None = "backend") -> Any:
    """Import an optional package, or say how to install it."""
    try:
        return import_module(name)
    except ImportError:
        raise UsageError(f"{needed_by} needs {name}, which is not installed; {install}", field) from None


def open_backend(
    name: str, cluster: str | None, runs: Sequence[PlannedRun], workers: int | None, devices: str | None
) -> Backend:
    """Connect to the workers; refuse options that contradict each other."""
    if name not in BACKENDS:
        raise UsageError(f"{name!r} must be one of {', '.join(BACKENDS)}", field="backend")
    if workers is not None:
        at_least(1, workers=workers)
        at_most(MOST_WORKERS, workers=workers)
    if name == "loky":
        if cluster is not None:
            raise UsageError("a cluster needs the backend dask or ray", field="cluster")
        return LokyBackend(device_slots(runs, workers, devices))
    if devices is not None:
        raise UsageError(f"with {name} the workers of the cluster choose their GPUs", field="devices")
    if name == "ray":
        return RayBackend(cluster, workers)
    if cluster is None:
        raise UsageError("dask needs the address of a scheduler, such as tcp://host:8786", field="cluster")
    return DaskBackend(cluster, workers)


# The workers of this machine: which GPU each one sees, and how many threads it has.


_FREE = ("auto", "cuda")


def device_slots(
    runs: Sequence[PlannedRun], workers: int | None, devices: str | None
) -> list[dict[str, str]]:
    """Environment variables per worker.

    The configuration of a run does not name the GPU it is trained on, so that it can be resumed on another;
    its process sees only that one.
    """
    gpus = _gpus(runs, devices)
    threads = torch.get_num_threads()
    wanted = max(run.config.training.threads for run in runs)
    count = workers or len(gpus) or max(1, threads // (wanted or threads))
    share = str(max(1, threads // count))
    common = {"OMP_NUM_THREADS": share, "MKL_NUM_THREADS": share}
    visible = [{"CUDA_VISIBLE_DEVICES": gpus[i % len(gpus)]} if gpus else {} for i in range(count)]
    return [{**common, **each} for each in visible]


def _gpus(runs: Sequence[PlannedRun], devices: str | None) -> list[str]:
    """CUDA's names of the chosen GPUs; empty if the runs choose for themselves or need none."""
    asked = {run.config.training.device for run in runs}
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    chosen = list(range(count)) if devices is None else [_index(d, count) for d in devices.split(",")]
    if not asked <= set(_FREE):
        if devices is not None:
            other = sorted(asked - set(_FREE))[0]
            raise UsageError(f"these runs have training.device = {other!r}; set it to auto", field="devices")
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(count)]
    return [names[i].strip() for i in chosen]


def _index(device: str, count: int) -> int:
    found = re.fullmatch(r"cuda:([0-9]{1,4})", device.strip(), re.ASCII)
    if not found:
        raise UsageError(f"{device!r} is not of the form cuda:N; write cuda:0,cuda:1", field="devices")
    if int(found[1]) >= count:
        raise UsageError(f"{device} does not exist; this machine has {count} GPUs", field="devices")
    return int(found[1])
