"""Paired differences of accuracies: of the same tasks, between runs of the same seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pathaware.sweep.intervals import over_seeds
from pathaware.training.evaluation import interval_over_tasks
from pathaware.training.provenance import task_values
from pathaware_research.experiments import Result


def mean_lead(per_seed: Sequence[Tensor]) -> str:
    """`+1.03 ± 1.29, 3 seeds`: paired differences of accuracies in points, with their interval over tasks and
    seeds; of one seed, over tasks.
    """
    points = 100 * torch.stack(list(per_seed))
    between = over_seeds(points.mean(1).tolist())
    half = math.hypot(interval_over_tasks(points.mean(0)), between or 0.0)
    seeds = f", {len(per_seed)} seeds" if len(per_seed) > 1 else ""
    return f"{points.mean().item():+.2f} ± {half:.2f}{seeds}"


def paired_differences(
    one: Sequence[Result], other: Sequence[Result], *, except_for: Sequence[str] = ()
) -> list[Tensor]:
    """For each seed that both have, the difference on every task.

    Only results that can be compared count: of the same length, precision and way of evaluation, but for the
    conditions in `except_for`. Tasks are drawn in a fixed order, so a shorter evaluation has the first tasks
    of a longer one. Differences are on the tasks that all of them have.
    """
    free = dict.fromkeys((*except_for, "tasks"))
    by_seed = [{result.seed: result for result in results} for results in (one, other)]
    found = []
    for seed in sorted(by_seed[0].keys() & by_seed[1].keys()):
        pair = [results[seed] for results in by_seed]
        conditions = [{**result.conditions, **free} for result in pair]
        first, second = (task_values(result.record) for result in pair)
        if conditions[0] == conditions[1] and first is not None and second is not None:
            shared = min(len(first), len(second))
            found.append((first[:shared] - second[:shared]).double())
    fewest = min(map(len, found), default=0)
    return [difference[:fewest] for difference in found]
