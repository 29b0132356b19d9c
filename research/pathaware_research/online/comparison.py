"""Compares online learners on the same streams, with settings chosen on a validation stream."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from scipy.stats import t

from pathaware.core.errors import RunError, UsageError
from pathaware_research.online.baselines import (
    BASELINES,
    LearnerSettings,
    StreamSetup,
    check_name,
    with_settings,
)


def grid(**choices: Sequence[Any]) -> list[dict[str, Any]]:
    """All combinations of the choices."""
    return [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]


# Values on both sides of the best, where updates of θ are cheap enough to try.
SINE = {
    "online": [
        *grid(rate=(0.005, 0.01, 0.02), meta_rate=(1e-2,), pull=(0.1, 1.0)),
        *grid(rate=(0.01,), meta_rate=(3e-3, 3e-2), pull=(1.0,)),
    ],
    "literal": [
        *grid(rate=(0.01, 0.02), descent=("adam",), meta_rate=(1e-3, 3e-3, 1e-2)),
        # α₁λ = 1e-3, so these are gradient steps of 1e-3 and 1e-2.
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


def candidate_settings(
    stream: str, only: Iterable[str] = (), given: Mapping[str, Mapping[str, Any]] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The settings that learners choose from, of all or `only` some; `given` settings replace choices."""
    given = given or {}
    only = list(only)
    for name in only:
        check_name(name, field="only")
    for name in given:
        check_name(name, field="set")
    found: dict[str, list[dict[str, Any]]] = {}
    for name, candidates in CANDIDATES[stream].items():
        if only and name not in only:
            if name in given:
                raise UsageError(f"{name} is not among the learners to compare", field="set")
            continue
        found[name] = []
        for candidate in candidates:
            merged = {**candidate, **given.get(name, {})}
            with_settings(name, merged)  # raises before anything runs
            if merged not in found[name]:
                found[name].append(merged)
    return found


Progress = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """The error on each data set of one stream, and the cost of learning them."""

    errors: list[float]
    gradients: int
    seconds: float

    @property
    def diverged(self) -> bool:
        return not all(map(math.isfinite, self.errors))


def run(
    settings: LearnerSettings, setup: StreamSetup, tasks: int, seed: int, purpose: str = "race"
) -> Outcome:
    """Run one learner over one stream, and test it on each data set after it has learned its items."""
    learner = settings.build(setup, seed)
    stream, errors, begun = setup.stream, [], time.perf_counter()
    for data_set in stream.data_sets(seed, tasks, purpose):
        learner.learn(data_set.items)
        x, y = data_set.test
        errors.append(stream.error(learner.predict(x), y))
        if not math.isfinite(errors[-1]):
            break
    return Outcome(errors, learner.gradients, time.perf_counter() - begun)


def validate(
    name: str, candidates: Sequence[Mapping[str, Any]], setup: StreamSetup, tasks: int
) -> list[dict[str, Any]]:
    """Candidates with their error in the last half of a validation stream (`None`: diverged), best first."""
    tried = []
    for candidate in candidates:
        outcome = run(with_settings(name, candidate), setup, tasks, 0, "validation")
        error = None if outcome.diverged else statistics.fmean(outcome.errors[tasks // 2 :])
        tried.append({"settings": dict(candidate), "error": error})
    return sorted(tried, key=lambda each: math.inf if each["error"] is None else each["error"])


def compare(
    candidates: Mapping[str, Sequence[Mapping[str, Any]]],
    setup: StreamSetup,
    tasks: int,
    seeds: int,
    progress: Progress = lambda line: None,
) -> dict[str, Any]:
    """Run learners by name, each with the best of its candidates; return a record for a JSON file."""
    record: dict[str, Any] = {
        "stream": setup.stream.describe(),
        "metric": setup.stream.metric,
        "tasks": tasks,
        "seeds": list(range(seeds)),
        "steps": setup.steps,
        "every": setup.every,
        "validation_tasks": (tasks + 1) // 2,
        "contestants": {},
    }
    for name, choices in candidates.items():
        label, _ = BASELINES[name]
        tried: list[dict[str, Any]] = []
        chosen = choices[0]
        if len(choices) > 1:
            progress(f"{label}: {len(choices)} settings to choose from")
            tried = validate(name, choices, setup, record["validation_tasks"])
            chosen = tried[0]["settings"]
        settings = with_settings(name, chosen)
        outcomes = []
        for seed in record["seeds"]:
            outcomes.append(run(settings, setup, tasks, seed))
            if outcomes[-1].diverged:
                raise RunError(
                    f"{name}: diverged on data set {len(outcomes[-1].errors)} of seed {seed}; "
                    f"try a smaller step size, such as {name}.rate={settings.rate / 3:.1g}"
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
    """The mean over the last quarter of a stream."""
    return statistics.fmean(errors[-max(1, len(errors) // 4) :])


def early_error(errors: Sequence[float]) -> float:
    """The mean over the first tenth of a stream."""
    return statistics.fmean(errors[: max(1, len(errors) // 10)])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean over seeds and the half-width of its 95 % interval by Student's t; NaN for one seed."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.nan
    quantile = round(float(t.ppf(0.975, len(values) - 1)), 3)  # as printed tables and our records have it
    return mean, quantile * statistics.stdev(values) / math.sqrt(len(values))
