"""The recipe on sine waves: PAMELA, MAML and Meta-SGD with equal settings, and the worth of each part.

    python -m pathaware_research.studies.sine_recipe --workers 2

The presets `recipe-sine-k5`, `-k10` and `-k20`, three seeds each; and, with 10 points, one part at a time as
in Table 3. `pathaware_research.pages.recipe_page` renders the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pathaware.sweep.run_store import PlannedRun
from pathaware.training.presets import SINE_ITERATIONS, load_preset
from pathaware_research.experiments import Experiment
from pathaware_research.studies import train_runs
from pathaware_research.studies.recipe import WHOLE

TASKS = 10_000
SEEDS = 3
POINTS = tuple(SINE_ITERATIONS)
METHODS = {WHOLE: "PAMELA, Q learned directly", "maml": "MAML", "meta-sgd": "Meta-SGD, 5 steps"}
"""Title of each method, by the name of its runs."""
PARTS: dict[str, tuple[str, Mapping[str, Mapping[str, Any]]]] = {
    WHOLE: ("the recipe", {}),
    "skips": ("P per layer at every second step", {"method": {"skip": 2, "p_granularity": "layer"}}),
    "rate": ("half the learning rate", {"training": {"rate": 2e-3}}),
    "queries": ("10 queries per task", {"problem": {"queries": 10}}),
}
"""Title and changed settings of each variant, by the name of its runs."""
COMPARED = 10
"""Points of the tasks on which the variants are compared."""


def run(points: int, part: str, seed: int) -> PlannedRun:
    tables = load_preset(f"recipe-sine-k{points}")
    tables["training"] |= {"device": "cpu", "threads": 1, "save": 10_000}
    if part in METHODS and part != WHOLE:
        tables["method"] = {"name": part, "steps": 5}
    changed = PARTS[part][1] if part in PARTS else {}
    experiment = Experiment(f"recipe-sine-k{points}-{part}", tables).with_settings(changed)
    return experiment.run(seed, SINE_ITERATIONS[points])


def runs() -> Iterator[PlannedRun]:
    for part in METHODS:
        for seed in range(SEEDS):
            for points in POINTS:
                yield run(points, part, seed)
    for part in list(PARTS)[1:]:
        yield run(COMPARED, part, 0)


RUNS = tuple(runs())

if __name__ == "__main__":
    train_runs(RUNS, TASKS, __doc__)
