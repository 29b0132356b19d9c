"""Time and GPU memory: medians over turns in which all implementations run one after another."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

Work = Callable[[int], object]
"""The work of turn i."""

Key = TypeVar("Key", bound=Hashable)
WARM_UP = 3


@dataclass(frozen=True)
class Timing:
    """Median and quartiles in milliseconds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        low, median, high = (1e3 * float(q) for q in np.quantile(seconds, (0.25, 0.5, 0.75)))
        return cls(median, low, high)

    def to_dict(self) -> dict[str, Any]:
        return {"ms": self.median, "quartiles_ms": [self.low, self.high]}


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def in_turns(
    work: Mapping[Key, Work],
    repeats: int,
    device: torch.device,
    before: Callable[[int], object] = lambda i: None,
    burst: float = 0.0,
) -> tuple[dict[Key, Timing], dict[Key, str]]:
    """Time all work in each of `repeats` turns, so that noise affects all alike; return timings and errors.

    Work that takes less than `burst` seconds is repeated for that long in each turn, at most 20 times, and
    averaged: as in a real run, an iteration then finds the caches as the previous one left them. `before` is
    called before each turn and is not timed. Work that raises is not run again.
    """
    times: dict[Key, list[float]] = {key: [] for key in work}
    errors: dict[Key, str] = {}
    counts = {key: _count(run, burst, device) for key, run in work.items()}
    for i in range(repeats):
        before(i)
        for key, run in work.items():
            if key in errors:
                continue
            wait(device)
            start = time.perf_counter()
            try:
                for _ in range(counts[key]):
                    run(i)
                wait(device)
            except Exception as error:  # the others can still be timed
                errors[key] = one_line(error)
            else:
                times[key].append((time.perf_counter() - start) / counts[key])
    return {key: Timing.of(seconds) for key, seconds in times.items() if key not in errors}, errors


def _count(run: Work, burst: float, device: torch.device) -> int:
    """The number of repetitions that fill a burst."""
    if not burst:
        return 1
    wait(device)
    start = time.perf_counter()
    try:
        run(0)
        wait(device)
    except Exception:  # it will be raised again in the first turn and reported there
        return 1
    return max(1, min(20, int(burst / (time.perf_counter() - start))))


def warmed_up(build: Callable[[], Work], device: torch.device) -> tuple[Work, float | None]:
    """Build work and run it a few times; return it and its GPU memory in megabytes, None on a CPU.

    The first calls capture CUDA graphs and try algorithms; that memory does not count. A captured graph keeps
    its memory and replaying it allocates nothing, so the result is the larger of the peak during a run and
    what stays reserved.
    """
    cuda = device.type == "cuda"
    if cuda:
        _free_cache(device)
        allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    work = build()
    for i in range(WARM_UP):
        work(i)
    wait(device)
    if not cuda:
        return work, None
    _free_cache(device)
    kept = torch.cuda.memory_reserved(device) - reserved
    torch.cuda.reset_peak_memory_stats(device)
    work(WARM_UP)
    wait(device)
    return work, max(torch.cuda.max_memory_allocated(device) - allocated, kept) / 1e6


def _free_cache(device: torch.device) -> None:
    wait(device)
    gc.collect()
    torch.cuda.empty_cache()


def one_line(error: Exception) -> str:
    """The type of an error and the beginning of its message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}".rstrip(": ")
