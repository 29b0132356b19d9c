"""How long a training will take, from a few of its iterations."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

import torch

from pathaware.errors import UsageError
from pathaware.training.config import Config
from pathaware.training.pretraining import seconds_of_pretraining
from pathaware.training.trainer import Trainer

ENOUGH = 1.0  # seconds of iterations to time


@dataclass(frozen=True)
class Pace:
    """Seconds before the first meta-iteration, and of each."""

    before: float
    each: float

    def seconds(self, iterations: int) -> float:
        return self.before + self.each * iterations


def measure(config: Config) -> Pace:
    """Run a few iterations. The first compiles and records, so it counts only if it takes long by itself."""
    before = seconds_of_pretraining(config) if config.training.pretrain else 0.0
    trainer = Trainer(config.trained(pretrain=0, validate=0))
    started = time.perf_counter()
    trainer.advance()
    _wait(config)
    first = time.perf_counter() - started
    if first > 5 * ENOUGH:
        return Pace(before, first)
    done, started = 0, time.perf_counter()
    while not done or time.perf_counter() - started < ENOUGH:
        trainer.advance()
        done += 1
        _wait(config)
    return Pace(before, (time.perf_counter() - started) / done)


def fitting(paces: list[Pace], lengths: list[int], budget: float) -> list[int]:
    """How long each training may be so that all fit in the budget: the same share of its own length each.

    A tenth of the budget is kept for evaluation.
    """
    time_left = 0.9 * budget - sum(pace.before for pace in paces)
    whole = sum(pace.each * length for pace, length in zip(paces, lengths, strict=True))
    share = min(1.0, time_left / whole)
    if share <= 0 or any(share * length < 1 for length in lengths):
        least = (sum(p.before + p.each for p in paces)) / 0.9
        raise UsageError(f"--budget: not enough for a single iteration of each run; at least {spoken(least)}")
    return [_rounded(share * length) for length in lengths]


def _rounded(number: float) -> int:
    """To two digits, downwards: lengths are for people to compare."""
    digits = max(1, 10 ** (len(str(int(number))) - 2))
    return int(number // digits) * int(digits)


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """`90s`, `10m`, `1h30m` or `2d` in seconds.

    >>> seconds("1h30m")
    5400.0
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageError(f"--budget: {text!r} is no time; write 90s, 10m, 1h30m or 2d")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def spoken(duration: float) -> str:
    """A duration as people say it: `40 s`, `12 min`, `3.5 h`."""
    if duration < 90:
        return f"{max(1, round(duration))} s"
    return f"{duration / 60:.0f} min" if duration < 5400 else f"{duration / 3600:.1f} h"


def _wait(config: Config) -> None:
    if config.training.torch_device.type == "cuda":
        torch.cuda.synchronize()
