"""How long runs take, from a few iterations, and how long each may train within a time budget."""

from __future__ import annotations

import heapq
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from pathaware.core.errors import UsageError
from pathaware.sweep.run_store import PlannedRun
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate
from pathaware.training.loop import Fit
from pathaware.training.meta_training import MetaTraining
from pathaware.training.progress import duration
from pathaware_research.experiments import Experiment, Results, RunStore, experiment_key

ENOUGH = 0.3
"""Seconds of work to time."""


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds per meta-iteration, validation included, and of everything else, such as evaluation."""

    overhead: float
    per_iteration: float

    def seconds(self, iterations: int) -> float:
        return self.overhead + self.per_iteration * iterations


def estimate_time(config: Config, tasks: int) -> TimeEstimate:
    """Time a few iterations, and the evaluation of a few tasks out of `tasks`."""
    training = config.training
    objective = MetaTraining(config.with_training(validate=0, histograms=0))
    fit, overhead = Fit(objective), 0.0
    fit.iteration = training.iterations // 2  # some methods have a slower phase at the beginning
    per_iteration = _timed(fit.advance, config)
    few = min(config.problem.evaluation_batch, tasks)
    evaluation = partial(evaluate, objective.learner, config.problem, split="val", tasks=few)
    per_task = _timed(evaluation, config) / few
    if training.validate:
        per_iteration += per_task * training.validation_tasks / training.validate
        overhead += per_task * training.validation_tasks  # after the last iteration in any case
    return TimeEstimate(overhead + per_task * tasks, per_iteration)


def _timed(work: Callable[[], object], config: Config) -> float:
    """Mean seconds of a piece of work, without its first execution, which compiles and records.

    As in training, the host waits for a GPU at the end only.
    """
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


def fit_lengths(
    estimates: Sequence[TimeEstimate],
    lengths: Sequence[int],
    budget: float,
    *,
    equal_time: bool = False,
    reserved: float = 0.0,
    begun: Sequence[float] = (),
    most: float = 1.0,
    workers: int = 1,
) -> list[int]:
    """Iterations per run so that all runs fit in `budget` seconds, `reserved` of which are for others.

    `workers` runs are trained at a time, and `begun` are the seconds that runs of known lengths take besides.
    Every run gets the same fraction of its full length, at most `most`, or, with `equal_time`, the same time.
    """

    def seconds(part: float) -> float:
        """The time until all are done, if each has this fraction of its length, or so many seconds."""
        own = [
            each.overhead + (part if equal_time else part * each.per_iteration * length)
            for each, length in zip(estimates, lengths, strict=True)
        ]
        return reserved + finished_after(sorted([*begun, *own], reverse=True), workers)

    if not estimates:
        return []
    least = max(each.per_iteration for each in estimates) if equal_time else 1 / min(lengths)
    _check_budget(budget, seconds(least), "one iteration of each run")
    part = _largest(least, lambda part: seconds(part) <= budget, math.inf if equal_time else max(most, least))
    if equal_time:
        return [_rounded(part / each.per_iteration) for each in estimates]
    return [max(1, _rounded(min(most, part) * length)) for length in lengths]


def finished_after(seconds: Sequence[float], workers: int) -> float:
    """The time until all runs are done, if each of the workers takes the next one when it is free.

    >>> finished_after([3, 2, 2], 1), finished_after([3, 2, 2], 2)
    (7.0, 4.0)
    """
    free = [0.0] * max(1, workers)
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


def _largest(low: float, fits: Callable[[float], bool], most: float) -> float:
    """The largest number up to `most` that fits, to a relative 1e-9, if `low` does and all below it do."""
    if most < math.inf and fits(most):
        return most
    high = 2 * low
    while high < math.inf and fits(high):
        high *= 2
    while high - low > 1e-9 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return min(low, most)


def _check_budget(budget: float, least: float, what: str) -> None:
    """Raise if the budget is below `least`, which the message states rounded up: that much is enough."""
    if budget < least:
        unit = 1 if least < 99 else 60  # as `duration` shows it
        rounded = duration(math.ceil(least / unit) * unit)
        raise UsageError(f"not enough for {what}; at least {rounded}", field="budget")


def _rounded(number: float) -> int:
    """Round down to two digits, which are easier to compare."""
    number += 1e-6  # 100 · (29 / 100) is a little less than 29
    digits = max(1, 10 ** (len(str(int(number))) - 2))
    return int(number // digits) * int(digits)


@dataclass(frozen=True)
class TrainingLength:
    """How long to train: as the paper did, for a number of iterations, or within a time budget in seconds.

    With a `budget`, an experiment that was begun keeps its length. The others share the time that it leaves,
    and get no larger part of their full length than those that were begun, so that a reproduction that was
    interrupted continues as it was planned. If there is a number of iterations, too, all have it, and
    `RunPlanner.within` says which runs fit. With `equal_iterations` all take the length of those that were
    begun. With `equal_time` all get the same time, and only runs of the experiments' own names count.
    """

    iterations: int | None = None
    budget: float | None = None
    equal_iterations: bool = False
    equal_time: bool = False


class RunPlanner:
    """Plans the runs that a store lacks, and estimates how long they take in so many `workers`.

    Workers divide the cores of a CPU or the GPUs. Runs are timed with the cores of one worker. More workers
    than there are cores or GPUs take turns, and count as no faster.
    """

    def __init__(self, store: RunStore, workers: int = 1) -> None:
        self.store, self.workers = store, workers
        self._estimates: dict[tuple[str, str], TimeEstimate] = {}

    def missing(
        self, experiments: Sequence[Experiment], length: TrainingLength, seeds: int = 1
    ) -> list[PlannedRun]:
        """Runs without a result, first seeds first. Experiments that differ in name only are trained once."""
        experiments = _distinct(experiments)
        results = self.store.results(experiments if length.equal_time else ())
        lengths = self._lengths(experiments, length, seeds, results)
        return _without_result(experiments, lengths, seeds, results)

    def within(self, runs: Sequence[PlannedRun], budget: float) -> list[PlannedRun]:
        """The runs that the workers finish in `budget` seconds, chosen in the order they are given."""
        chosen, taken = [], list[float]()
        seconds = [self.seconds([run]) for run in runs]
        workers = self._at_once(runs)
        for run, needed in zip(runs, seconds, strict=True):
            if finished_after([*taken, needed], workers) <= budget:
                chosen.append(run)
                taken.append(needed)
        if runs and not chosen:
            _check_budget(budget, min(seconds), "any run of this length")
        return chosen

    def longest_first(self, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
        """The order in which several workers train all `runs` soonest: the longest do not begin last.

        Runs of about the same length, within a factor of two, keep the order they are given in.
        """
        seconds = [max(self.seconds([run]), 1.0) for run in runs]
        ranked = sorted(zip(runs, seconds, strict=True), key=lambda pair: -round(math.log2(pair[1])))
        return [run for run, _ in ranked]

    def anew(self, experiments: Sequence[Experiment], length: TrainingLength) -> list[PlannedRun]:
        """One run per experiment, whether or not it has a result."""
        lengths = self._lengths(experiments, length, 1)
        return [experiment.run(0, lengths[experiment.name]) for experiment in experiments]

    def seconds(self, runs: Sequence[PlannedRun]) -> float:
        """The time until these runs are done, in this order; some may be trained meanwhile."""
        return finished_after([self._seconds_left(run) for run in runs], self._at_once(runs))

    def _seconds_left(self, planned: PlannedRun) -> float:
        left = 1 - self.store.trained_fraction(planned)
        if not left:
            return 0.0
        estimate, iterations = self.estimate(planned.config), planned.config.training.iterations
        # A resumed run has its pretraining behind it; evaluation is short.
        return estimate.per_iteration * left * iterations + (estimate.overhead if left == 1 else 0.0)

    def _at_once(self, runs: Sequence[PlannedRun]) -> int:
        """The number of runs that are trained at the same time, each as fast as it was timed."""
        return min((self._share(run.config)[0] for run in runs), default=1)

    def _share(self, config: Config) -> tuple[int, int]:
        """How many runs like this one the machine trains at full speed at a time, and with how many threads
        each; 0 for PyTorch's default. See `worker_backends.device_slots`."""
        training = config.training
        if self.workers == 1:
            return 1, training.threads
        if training.torch_device.type == "cuda":
            return min(self.workers, torch.cuda.device_count()), training.threads
        cores = torch.get_num_threads()
        threads = training.threads or max(1, cores // self.workers)
        return min(self.workers, max(1, cores // threads)), threads

    def estimate(self, config: Config) -> TimeEstimate:
        key = experiment_key(config)
        if key not in self._estimates:
            cores, (_, threads) = torch.get_num_threads(), self._share(config)
            try:
                self._estimates[key] = estimate_time(
                    config.with_training(threads=threads), self.store.evaluation_tasks(config)
                )
            finally:
                torch.set_num_threads(cores)  # workers divide those that are here
        return self._estimates[key]

    def _lengths(
        self,
        experiments: Sequence[Experiment],
        length: TrainingLength,
        seeds: int,
        results: Results | None = None,
    ) -> dict[str, int]:
        if length.budget is None or length.iterations:
            return {e.name: length.iterations or e.config().training.iterations for e in experiments}
        known = None if length.equal_iterations else results
        found = {e.name: n for e in experiments if (n := self._begun(e, known))}
        if length.equal_iterations and found:
            return {e.name: max(found.values()) for e in experiments}
        left = [e for e in experiments if e.name not in found]
        if not left:
            return found
        if length.equal_time:  # what is done has had its time
            budget = length.budget * len(left) / len(experiments)
            return found | self._fitted(left, seeds, budget, equal_time=True)
        started = time.perf_counter()
        begun = [e for e in experiments if e.name in found]
        unfinished = [self._seconds_left(run) for run in _without_result(begun, found, seeds, results)]
        most = max((found[e.name] / e.config().training.iterations for e in begun), default=1.0)
        options = {"reserved": time.perf_counter() - started, "begun": unfinished, "most": min(1.0, most)}
        return found | self._fitted(left, seeds, length.budget, **options)

    def _fitted(
        self, experiments: Sequence[Experiment], seeds: int, budget: float, **options: Any
    ) -> dict[str, int]:
        """Lengths that fit into `budget` seconds, from which estimating takes its time; see `fit_lengths`."""
        every = [experiment for experiment in experiments for _ in range(seeds)]
        configs = [experiment.config() for experiment in every]
        started = time.perf_counter()
        estimates = [self.estimate(config) for config in configs]
        if not options.get("equal_time"):
            options["reserved"] += time.perf_counter() - started
        full = [config.training.iterations for config in configs]
        workers = min(self._share(config)[0] for config in configs)
        lengths = fit_lengths(estimates, full, budget, workers=workers, **options)
        return dict(zip((experiment.name for experiment in every), lengths, strict=True))

    def _begun(self, experiment: Experiment, results: Results | None) -> int | None:
        """The length of the experiment's longest run or result, finished or not."""
        lengths = [run.config.training.iterations for run in self.store.runs_of(experiment)]
        lengths += [result.iterations for result in results.of(experiment)] if results else []
        return max(lengths, default=None)


def _without_result(
    experiments: Sequence[Experiment], lengths: Mapping[str, int], seeds: int, results: Results | None
) -> list[PlannedRun]:
    """The runs of these lengths that have no result, first seeds first."""
    done = {
        (e.name, result.seed) for e in experiments if results for result in results.of(e, lengths[e.name])
    }
    return [
        experiment.run(seed, lengths[experiment.name])
        for seed in range(seeds)
        for experiment in experiments
        if (experiment.name, seed) not in done
    ]


def _distinct(experiments: Sequence[Experiment]) -> list[Experiment]:
    """Rows can share a training, such as PAMELA and its ablation with every part left in."""
    return list({experiment_key(e.config()): e for e in reversed(experiments)}.values())[::-1]


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """Convert `90s`, `10m`, `1h30m` or `2d` to seconds.

    >>> parse_duration("1h30m")
    5400.0
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise UsageError(f"{text!r} is not a duration; write 90s, 10m, 1h30m or 2d", field="budget")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
