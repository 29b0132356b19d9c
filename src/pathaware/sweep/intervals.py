"""Means and 95 % intervals over tasks and seeds.

All seeds of an experiment are evaluated on the same tasks. Two things vary: the tasks, and the seed of the
training. `over_seeds_and_tasks` adds both as independent parts: half the width of an interval is
√(tasks² + seeds²), where the first is that of the mean over tasks of each task's mean over seeds, and the
second is Student's t times the standard error of the seeds' means. With one seed only the first is known.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from pathaware.sweep.run_store import Result
from pathaware.training.evaluation import interval_over_tasks
from pathaware.training.metric import Metric, median
from pathaware.training.provenance import task_values

RESAMPLES = 1000
BLOCKS = 20
"""Parts of the resamples that are computed one after another, to bound memory."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval, and the median over tasks if every task's value is known."""

    mean: float
    low: float
    high: float
    seeds: int
    median: float | None = None

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def over_seeds_and_tasks(results: Sequence[Result], metric: Metric) -> Estimate:
    """The mean of one result per seed.

    The interval over tasks is normal for accuracies. Errors have heavy tails, so theirs is a bootstrap
    interval, which need not be symmetric. Records without the values of tasks have a normal interval.
    """
    pairs = [result.value(metric) for result in results]
    means = [value for value, _ in pairs]
    mean, seeds = statistics.fmean(means), over_seeds(means)
    values = [task_values(result.record) for result in results]
    known = [each.double() for each in values if each is not None]
    if len(known) < len(results) or len({len(each) for each in known}) > 1:
        half = math.hypot(statistics.fmean(ci for _, ci in pairs), seeds or 0.0)
        low = max(mean - half, 0.0) if metric.lower_is_better else mean - half
        return Estimate(mean, low, mean + half, len(results))
    by_task = torch.stack(known).mean(0)
    below, above = bootstrap(by_task) if metric.lower_is_better else (interval_over_tasks(by_task),) * 2
    middle = median(torch.stack(known))
    low, high = (math.hypot(part, seeds or 0.0) for part in (below, above))
    least = max(mean - low, 0.0) if metric.lower_is_better else mean - low  # no error is negative
    return Estimate(mean, least, mean + high, len(results), middle)


def mean(results: Sequence[Result], metric: Metric) -> tuple[float, float]:
    """Mean and half the width of its interval over tasks and seeds."""
    estimate = over_seeds_and_tasks(results, metric)
    return estimate.mean, estimate.half_width


def with_interval(results: Sequence[Result], metric: Metric) -> str:
    """`75.31 ± 0.54`, or `0.0259 (0.0238 to 0.0279)` for errors, whose interval need not be symmetric."""
    estimate = over_seeds_and_tasks(results, metric)
    if not metric.lower_is_better:
        return metric.with_interval(estimate.mean, estimate.half_width)
    value, low, high = map(metric.format, (estimate.mean, estimate.low, estimate.high))
    return f"{value} ({low} to {high})"


def value_range(results: Sequence[Result], metric: Metric) -> str:
    """Format the smallest and the largest value: `68.20–69.10`."""
    values = [result.value(metric)[0] for result in results]
    return f"{metric.format(min(values))}–{metric.format(max(values))}"


def over_seeds(means: Sequence[float]) -> float | None:
    """Half the width of Student's interval of the mean over seeds; None for one seed."""
    if len(means) < 2:
        return None
    quantile = float(stats.t.ppf(0.975, len(means) - 1))
    return quantile * statistics.stdev(means) / math.sqrt(len(means))


def bootstrap(values: Tensor) -> tuple[float, float]:
    """Distances from the mean of `values [tasks]` to the ends of its percentile bootstrap interval."""
    each = values.double().numpy()
    means = np.concatenate([block @ each for block in np.split(_counts(len(each)), BLOCKS)]) / len(each)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(each.mean() - low), float(high - each.mean())


@lru_cache(maxsize=8)
def _counts(size: int) -> NDArray[np.uint8]:
    """How often each of `size` values is drawn in each resample: `[resamples, size]`, the same every time."""
    random = np.random.default_rng(0)
    draws = (row for _ in range(BLOCKS) for row in random.integers(size, size=(RESAMPLES // BLOCKS, size)))
    return np.array([np.bincount(row, minlength=size).astype(np.uint8) for row in draws])
