"""Which settings a contestant may choose from on its validation stream, by stream and contestant."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from pathaware.core.errors import RunError, UsageError
from pathaware.experiments.online.baselines import CONTESTANTS, Conditions, Settings, with_settings


def grid(**choices: Sequence[Any]) -> list[dict[str, Any]]:
    """Every combination."""
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


# On each side of what turned out best, where steps of θ do not cost too much to try.
SINE = {
    "online": [
        *grid(rate=(0.005, 0.01, 0.02), meta_rate=(1e-2,), pull=(0.1, 1.0)),
        *grid(rate=(0.01,), meta_rate=(3e-3, 3e-2), pull=(1.0,)),
    ],
    "literal": [
        *grid(rate=(0.01, 0.02), descent=("adam",), meta_rate=(1e-3, 3e-3, 1e-2)),
        # α₁λ = 1e-3, so these are steps of 1e-3 and 1e-2 down the slope.
        *grid(rate=(0.01,), descent=("sgd",), meta_rate=(1.0, 10.0)),
    ],
    "leader": [
        *grid(rate=(0.0025, 0.005, 0.01, 0.02), meta_rate=(1e-2,)),
        *grid(rate=(0.005,), meta_rate=(3e-3, 3e-2)),
    ],
    "tuning": grid(rate=(0.005, 0.01, 0.02, 0.05)),
    "scratch": grid(rate=(0.005, 0.01, 0.02, 0.05)),
}
# A run takes a minute here. With α₂ = 1e-3 and 1e-2 the online learner was worse on the validation stream.
GLYPHS = {
    "online": grid(rate=(0.05, 0.1), meta_rate=(3e-3,), replay=(4,)),
    "literal": grid(rate=(0.05, 0.1), meta_rate=(1e-3, 3e-3, 1e-2)),
    "leader": grid(rate=(0.05, 0.1), meta_rate=(3e-3,), replay=(4,)),
    "tuning": grid(rate=(0.02, 0.05, 0.1, 0.2)),
    "scratch": grid(rate=(0.02, 0.05, 0.1, 0.2)),
}
CANDIDATES: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]] = {"sine": SINE, "glyphs": GLYPHS}


def entries(
    stream: str, only: Iterable[str] = (), given: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The candidates of all contestants, or of `only` some; what is `given` is set in each of them."""
    given = given or {}
    only = list(only)
    for name in (*only, *given):
        if name not in CONTESTANTS:
            raise UsageError(f"contestant: {name!r} is none of {', '.join(CONTESTANTS)}")
    found: dict[str, list[dict[str, Any]]] = {}
    for name, candidates in CANDIDATES[stream].items():
        if only and name not in only:
            if name in given:
                raise UsageError(f"{name} does not take part", field="set")
            continue
        found[name] = []
        for candidate in candidates:
            merged = {**candidate, **given.get(name, {})}
            with_settings(name, merged)  # refused before anything runs
            if merged not in found[name]:
                found[name].append(merged)
    return found


# Contestants on the same stream: how well each has learned every data set, over several seeds.


# Two-sided 97.5 % points of Student's t by degrees of freedom: a few seeds are no large sample.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """Errors at each position of one stream, and what they cost."""

    errors: list[float]
    gradients: int
    seconds: float

    @property
    def diverged(self) -> bool:
        return not all(map(math.isfinite, self.errors))


def run(settings: Settings, conditions: Conditions, tasks: int, seed: int, purpose: str = "race") -> Outcome:
    """One contestant over one stream; it is judged on each data set when it has learned its items."""
    contestant = settings.enter(conditions, seed)
    stream, errors, begun = conditions.stream, [], time.perf_counter()
    for data_set in stream.data_sets(seed, tasks, purpose):
        contestant.learn(data_set.items)
        x, y = data_set.test
        errors.append(stream.error(contestant.predict(x), y))
        if not math.isfinite(errors[-1]):
            break
    return Outcome(errors, contestant.gradients, time.perf_counter() - begun)


def choose(
    name: str, candidates: Sequence[Mapping[str, Any]], conditions: Conditions, tasks: int
) -> list[dict[str, Any]]:
    """Candidates with their error in the last half of a validation stream (`None`: diverged), best first."""
    judged = []
    for candidate in candidates:
        found = run(with_settings(name, candidate), conditions, tasks, 0, "validation")
        error = None if found.diverged else statistics.fmean(found.errors[tasks // 2 :])
        judged.append({"settings": dict(candidate), "error": error})
    return sorted(judged, key=lambda each: math.inf if each["error"] is None else each["error"])


def race(
    entries: Mapping[str, Sequence[Mapping[str, Any]]],
    conditions: Conditions,
    tasks: int,
    seeds: int,
    progress: Progress = lambda line: None,
) -> dict[str, Any]:
    """Contestants by name with the settings each may choose from, as a record for a JSON file."""
    record: dict[str, Any] = {
        "stream": conditions.stream.describe(),
        "metric": conditions.stream.metric,
        "tasks": tasks,
        "seeds": list(range(seeds)),
        "steps": conditions.steps,
        "every": conditions.every,
        "validation_tasks": (tasks + 1) // 2,
        "contestants": {},
    }
    for name, candidates in entries.items():
        label, _ = CONTESTANTS[name]
        tried: list[dict[str, Any]] = []
        chosen = candidates[0]
        if len(candidates) > 1:
            progress(f"{label}: {len(candidates)} settings to choose from")
            tried = choose(name, candidates, conditions, record["validation_tasks"])
            chosen = tried[0]["settings"]
        settings = with_settings(name, chosen)
        outcomes = []
        for seed in record["seeds"]:
            outcomes.append(run(settings, conditions, tasks, seed))
            if outcomes[-1].diverged:
                raise RunError(
                    f"{name}: diverged on data set {len(outcomes[-1].errors)} of seed {seed}; "
                    f"a smaller rate may help, as --set {name}.rate={settings.rate / 3:.1g}"
                )
            progress(f"{label}: seed {seed}, {late_error(outcomes[-1].errors):.3f} at the end")
        record["contestants"][name] = {
            "label": label,
            "settings": asdict(settings),
            "tried": tried,
            "errors": [[float(f"{error:.5g}") for error in each.errors] for each in outcomes],
            "gradients_per_data_set": statistics.fmean(each.gradients for each in outcomes) / tasks,
            "seconds": statistics.fmean(each.seconds for each in outcomes),
        }
    return record


def late_error(errors: Sequence[float]) -> float:
    """Mean over the last quarter of a stream."""
    return statistics.fmean(errors[-max(1, len(errors) // 4) :])


def early_error(errors: Sequence[float]) -> float:
    """Mean over the first tenth."""
    return statistics.fmean(errors[: max(1, len(errors) // 10)])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean of a few seeds, and half the width of its 95 % interval by Student's t; of one seed, no width."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan
    quantile = STUDENT[len(values) - 2] if len(values) - 2 < len(STUDENT) else 1.96 + 2.6 / (len(values) - 1)
    return mean, quantile * statistics.stdev(values) / math.sqrt(len(values))
