"""The results of a sweep as one table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pathaware.data.store import counted
from pathaware.sweep.intervals import mean, value_range, with_interval
from pathaware.sweep.plan import SEED, short_names, short_value
from pathaware.sweep.run_store import PlannedRun, Result, RunStore
from pathaware.training.config import format_value
from pathaware.training.metric import MSE, Metric
from pathaware.training.tables import NOTHING, Remark, Row, Table

_SPLITS = {"train": "training", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class Outcome:
    """A run and its result, or the reason why it has none."""

    run: PlannedRun
    result: Result | None
    reason: str = ""


def summary(title: str, outcomes: Sequence[Outcome], store: RunStore) -> Table:
    """One row per combination, averaged over the seeds that are swept, with the best one emphasised.

    A combination without a result for one of its seeds cannot be the best: that seed may be the bad one.
    """
    metric = outcomes[0].run.config.problem.metric
    names = [name for name in outcomes[0].run.settings if name != SEED]
    seeds = SEED in outcomes[0].run.settings
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in outcomes:  # a search may try the same settings twice, which are two rows
        same = tuple(format_value(outcome.run.settings[n]) for n in names) if seeds else (outcome.run.name,)
        groups.setdefault(same, []).append(outcome)
    values = [_value(group, metric) for group in groups.values()]
    sound = [value for value in values if value is not None]
    best = metric.best(sound) if len(sound) > 1 else None
    rows = [
        Row(_cells(names, group, metric, seeds), emphasis=best is not None and value == best)
        for group, value in zip(groups.values(), values, strict=True)
    ]
    words = short_names(list(outcomes[0].run.settings))
    header = [*(words[n] for n in names), "MSE" if metric is MSE else metric.title]
    return Table(title, (*header, "seeds") if seeds else tuple(header), rows, _notes(outcomes, store))


def _value(group: Sequence[Outcome], metric: Metric) -> float | None:
    """The value to choose a combination by; None if one of its runs has no finite result."""
    results = [outcome.result for outcome in group if outcome.result is not None]
    value = mean(results, metric)[0] if len(results) == len(group) else math.nan
    return value if math.isfinite(value) else None


def _cells(names: list[str], group: Sequence[Outcome], metric: Metric, seeds: bool) -> tuple[str, ...]:
    key = [short_value(group[0].run.settings[name]) for name in names]
    sound = [o.result for o in group if o.result and math.isfinite(o.result.value(metric)[0])]
    missing = [(o, _reason(o)) for o in group if o.result not in sound]
    value: str = with_interval(sound, metric) if sound else Remark(missing[0][1])
    if not seeds:
        return (*key, value)
    seen = f"{len(sound)} ({value_range(sound, metric)})" if len(sound) > 1 else str(len(sound))
    if missing and sound:
        reasons = "; ".join(f"seed {o.run.config.training.seed} {reason}" for o, reason in missing)
        seen = Remark(f"{seen} of {len(group)}; {reasons}")
    return (*key, value, seen if sound else NOTHING)


def _reason(outcome: Outcome) -> str:
    if outcome.result is not None:
        return "diverged: its result is not a finite number"
    return outcome.reason or "not trained to the end"


def _notes(outcomes: Sequence[Outcome], store: RunStore) -> list[str]:
    tasks = store.evaluation_tasks(outcomes[0].run.config)
    return [
        f"Evaluated on {counted(tasks, 'task')} of the {_SPLITS[store.split]} split, the same for every run: "
        "means, with 95 % intervals over tasks, and over seeds where there are several."
    ]
