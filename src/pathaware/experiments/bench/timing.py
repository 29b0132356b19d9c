"""Times and memory: medians with the device waited for, all contestants in turns."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from pathaware.experiments.bench.contestants import Work

Key = TypeVar("Key", bound=Hashable)
WARM_UP = 3


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median and the quartiles around it."""

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
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def in_turns(
    work: Mapping[Key, Work],
    repeats: int,
    device: torch.device,
    before: Callable[[int], object] = lambda i: None,
    burst: float = 0.0,
) -> tuple[dict[Key, Timing], dict[Key, str]]:
    """Time all work `repeats` times, one after the other in each turn, so that all meet the same noise.

    Work that takes less than `burst` seconds runs that long in each turn, twenty times at most, and the mean
    is taken: an iteration of a run finds caches as the one before has left them, not another contestant.
    `before` is called before each turn and not timed. Who fails leaves the race; its error is in the second
    answer.
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
            except Exception as error:  # whatever it is, the others can still be timed
                errors[key] = one_line(error)
            else:
                times[key].append((time.perf_counter() - start) / counts[key])
    return {key: Timing.of(seconds) for key, seconds in times.items() if key not in errors}, errors


def _count(run: Work, burst: float, device: torch.device) -> int:
    """How many runs fill a burst."""
    if not burst:
        return 1
    wait(device)
    start = time.perf_counter()
    try:
        run(0)
        wait(device)
    except Exception:  # it will fail again, and then be told of
        return 1
    return max(1, min(20, int(burst / (time.perf_counter() - start))))


def warmed_up(build: Callable[[], Work], device: torch.device) -> tuple[Work, float | None]:
    """Work that has run a few times, and the megabytes it takes on a GPU (None elsewhere).

    First calls record graphs and try out algorithms, whose memory does not count. A recorded graph keeps
    its memory for good, and replaying it allocates nothing: so what counts is the larger of what is
    allocated at most while it runs and what it keeps.
    """
    cuda = device.type == "cuda"
    if cuda:
        _tidy(device)
        allocated, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    work = build()
    for i in range(WARM_UP):
        work(i)
    wait(device)
    if not cuda:
        return work, None
    _tidy(device)
    kept = torch.cuda.memory_reserved(device) - reserved
    torch.cuda.reset_peak_memory_stats(device)
    work(WARM_UP)
    wait(device)
    return work, max(torch.cuda.max_memory_allocated(device) - allocated, kept) / 1e6


def _tidy(device: torch.device) -> None:
    wait(device)
    gc.collect()
    torch.cuda.empty_cache()


def one_line(error: Exception) -> str:
    """The kind of an error and the beginning of what it says."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:160]}".rstrip(": ")
