"""The effect of our additions to the paper's training: the cosine schedule, gradient clipping and the guard.

    python -m pathaware_research.studies.additions --workers 2

PAMELA and MAML on sine waves (10 points) and PAMELA on glyphs, with all three, without each, and without any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pathaware.sweep.run_store import PlannedRun
from pathaware.training.presets import PRINTED, load_preset
from pathaware_research.experiments import Experiment
from pathaware_research.studies import train_runs, with_q_learned_directly

TASKS = 2000
SEEDS = 3
VARIANTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "all": ("all three", {}),
    "no-schedule": ("constant learning rate", {"schedule": PRINTED["schedule"]}),
    "no-clip": ("no clipping", {"clip": PRINTED["clip"]}),
    "no-guard": ("no guard", {"guard": PRINTED["guard"]}),
    "none": ("none of them", PRINTED),
}
"""The additions that are left, and the settings, by the name of the run."""
PROBLEMS = {
    "sine-k10-pamela": ("sine, 10 points, PAMELA, Q learned directly", 3000),
    "sine-k10-maml": ("sine, 10 points, MAML", 3000),
    "glyphs-pamela": ("glyphs 5-way 1-shot, PAMELA, Q learned directly", 150),
}
"""Title and number of iterations of each problem and method."""


def base(problem: str) -> dict[str, dict[str, Any]]:
    if problem.startswith("sine"):
        return with_q_learned_directly(load_preset(f"table3-{problem}"))
    tables = load_preset("glyphs")
    training = {**tables.get("training", {}), "validate": 0, "device": "cpu", "threads": 1}
    return {**tables, "method": {"name": "pamela", **tables.get("method", {})}, "training": training}


def run(problem: str, variant: str, seed: int) -> PlannedRun:
    tables = base(problem)
    _, settings = VARIANTS[variant]
    tables["training"] = {**tables.get("training", {}), **settings}
    experiment = Experiment(f"additions-{problem}-{variant}", tables)
    return experiment.run(seed, PROBLEMS[problem][1])


def runs() -> Iterator[PlannedRun]:
    for seed in range(SEEDS):
        for problem in PROBLEMS:
            for variant in VARIANTS:
                yield run(problem, variant, seed)


RUNS = tuple(runs())

if __name__ == "__main__":
    train_runs(RUNS, TASKS, __doc__)
