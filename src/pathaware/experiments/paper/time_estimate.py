"""How long a training will take, from a few of its iterations."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from pathaware.core.errors import UsageError
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate
from pathaware.training.pretraining import seconds_of_pretraining
from pathaware.training.trainer import Trainer

ENOUGH = 0.3  # seconds of iterations to time


@dataclass(frozen=True)
class Pace:
    """Seconds of what comes besides the meta-iterations (pretraining, judging the result), and of each of
    them, validation included."""

    besides: float
    each: float

    def seconds(self, iterations: int) -> float:
        return self.besides + self.each * iterations


def measure(config: Config, tasks: int) -> Pace:
    """From a few iterations and a few tasks judged."""
    training = config.training
    besides = seconds_of_pretraining(config) if training.pretrain else 0.0
    trainer = Trainer(config.with_training(pretrain=0, validate=0, histograms=0))
    trainer.iteration = training.iterations // 2  # some methods have a slower phase at the beginning
    each = _timed(trainer.advance, config)
    few = min(config.problem.evaluation_batch, tasks)
    judging = _timed(lambda: evaluate(trainer.learner, config.problem, split="val", tasks=few), config) / few
    if training.validate:
        each += judging * training.validation_tasks / training.validate
        besides += judging * training.validation_tasks  # after the last iteration in any case
    return Pace(besides + judging * tasks, each)


def _timed(work: Callable[[], object], config: Config) -> float:
    """Mean seconds of some work. The first time does not count: it compiles and records. A GPU is waited for
    at the end only, as in training, where the host prepares what comes next meanwhile."""
    on_gpu = config.training.torch_device.type == "cuda"
    work()
    count = 1
    while True:
        if on_gpu:
            torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(count):
            work()
        if on_gpu:
            torch.cuda.synchronize()
        passed = time.perf_counter() - started
        if passed >= ENOUGH:
            return passed / count
        count *= 2


def fitting(paces: list[Pace], lengths: list[int], budget: float, *, timed: bool = False) -> list[int]:
    """How long each training may be so that all fit in the budget: the same share of its own length each, or,
    if they are `timed`, the same time each."""
    if timed:
        each = (budget - sum(pace.besides for pace in paces)) / max(1, len(paces))
        if any(each < pace.each for pace in paces):
            raise _too_little(paces)
        return [_rounded(each / pace.each) for pace in paces]
    whole = sum(pace.each * length for pace, length in zip(paces, lengths, strict=True))
    share = min(1.0, (budget - sum(pace.besides for pace in paces)) / whole)
    if any(share * length < 1 for length in lengths):
        raise _too_little(paces)
    return [_rounded(share * length) for length in lengths]


def _too_little(paces: list[Pace]) -> UsageError:
    least = sum(pace.seconds(1) for pace in paces)
    return UsageError(f"not enough for one iteration of each run; at least {spoken(least)}", field="budget")


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
        raise UsageError(f"{text!r} is no time; write 90s, 10m, 1h30m or 2d", field="budget")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def spoken(duration: float) -> str:
    """A duration as people say it: `40 s`, `12 min`, `3.5 h`."""
    if duration < 90:
        return f"{max(1, round(duration))} s"
    return f"{duration / 60:.0f} min" if duration < 5400 else f"{duration / 3600:.1f} h"
