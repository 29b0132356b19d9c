"""What a sweep found, as one table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pathaware.experiments.paper.method_table import mean, span
from pathaware.experiments.run_store import Result
from pathaware.experiments.sweep.plan import SEED, Point, brief, short, shown
from pathaware.experiments.sweep.workers import Folder
from pathaware.training.metric import MSE, Metric
from pathaware.training.tables import NOTHING, Remark, Row, Table

_SPLITS = {"train": "training", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class Outcome:
    """A run and what it reached, or the reason why there is nothing."""

    point: Point
    result: Result | None
    reason: str = ""


def summary(title: str, outcomes: Sequence[Outcome], folder: Folder) -> Table:
    """A row a combination, with its seeds averaged where they are swept; the best one emphasised.

    A combination that lost a seed is not called the best: the seed that is missing may be the bad one.
    """
    metric = outcomes[0].point.config.problem.metric
    names = [name for name in outcomes[0].point.settings if name != SEED]
    seeds = SEED in outcomes[0].point.settings
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in outcomes:  # a search may come to the same settings twice, and says so
        same = tuple(shown(outcome.point.settings[n]) for n in names) if seeds else (outcome.point.name,)
        groups.setdefault(same, []).append(outcome)
    values = [_value(group, metric) for group in groups.values()]
    sound = [value for value in values if value is not None]
    best = metric.best(sound) if len(sound) > 1 else None
    rows = [
        Row(_cells(names, group, metric, seeds), emphasis=best is not None and value == best)
        for group, value in zip(groups.values(), values, strict=True)
    ]
    words = short(list(outcomes[0].point.settings))
    header = [*(words[n] for n in names), "MSE" if metric is MSE else metric.title]
    return Table(title, (*header, "seeds") if seeds else tuple(header), rows, _notes(outcomes, folder))


def _value(group: Sequence[Outcome], metric: Metric) -> float | None:
    """What a combination is chosen by; nothing if one of its runs has no usable result."""
    results = [outcome.result for outcome in group if outcome.result is not None]
    value = mean(results, metric)[0] if len(results) == len(group) else math.nan
    return value if math.isfinite(value) else None


def _cells(names: list[str], group: Sequence[Outcome], metric: Metric, seeds: bool) -> tuple[str, ...]:
    key = [brief(group[0].point.settings[name]) for name in names]
    sound = [o.result for o in group if o.result and math.isfinite(o.result.value(metric)[0])]
    lost = [(o, _lost(o)) for o in group if o.result not in sound]
    reached: str = Remark(lost[0][1]) if not sound else metric.with_interval(*mean(sound, metric))
    if not seeds:
        return (*key, reached)
    told = f"{len(sound)} ({span(sound, metric)})" if len(sound) > 1 else str(len(sound))
    if lost and sound:
        told = Remark(f"{told} of {len(group)}; " + "; ".join(f"seed {_seed(o)} {why}" for o, why in lost))
    return (*key, reached, told if sound else NOTHING)


def _lost(outcome: Outcome) -> str:
    if outcome.result is not None:
        return "diverged: its result is not a finite number"
    return outcome.reason or "not trained to the end"


def _seed(outcome: Outcome) -> int:
    return outcome.point.config.training.seed


def _notes(outcomes: Sequence[Outcome], folder: Folder) -> list[str]:
    tasks = folder.judged(outcomes[0].point)
    return [
        f"Judged on {tasks:,} tasks of the {_SPLITS[folder.split]} split, the same for every run: means, "
        "with 95 % intervals over tasks."
    ]
