"""Where runs are trained: each worker has its GPU, or its share of the CPU's threads."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import torch

from pathaware.errors import UsageError
from pathaware.settings import at_least
from pathaware.sweep.point import Point

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
            raise UsageError(f"--devices: these runs have training.device = {other!r}; let it be auto")
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(there)]
    return [names[i].strip() for i in chosen]


def _index(device: str, there: int) -> int:
    found = re.fullmatch(r"cuda:([0-9]{1,4})", device.strip(), re.ASCII)
    if not found:
        raise UsageError(f"--devices: {device!r} is not of the form cuda:N; as cuda:0,cuda:1")
    if int(found[1]) >= there:
        raise UsageError(f"--devices: {device} is not there; this machine has {there} GPUs")
    return int(found[1])
