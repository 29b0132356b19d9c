"""The number of inner steps n, and the interval of skips w, on sine waves.

    python -m pathaware_research.studies.steps --workers 2

K = 10, our training settings, 3,000 iterations, the same 2,000 test waves for every row. MAML and PAMELA with
w = 2 for every n, and PAMELA with ten steps for every w; Q is learned directly. On images: `pathaware
reproduce steps`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pathaware.sweep.run_store import PlannedRun
from pathaware.training.presets import DIRECT, load_preset
from pathaware_research.experiments import Experiment
from pathaware_research.paper.tables import STEPS, steps_method
from pathaware_research.studies import additions, train_runs

TASKS = 2000
ITERATIONS = 3000
SEEDS = 3
DEPTH = 10
"""The number of steps with which intervals are compared."""
METHODS = ("maml", "pamela-direct")
INTERVALS = range(1, DEPTH)


def run(method: dict[str, Any], seed: int) -> PlannedRun:
    settings = "-".join(f"{key}{value}" for key, value in method.items() if key not in ("name", *DIRECT))
    tables = {**load_preset("table3-sine-k10-maml"), "method": method}
    return Experiment(f"inner-steps-sine-k10-{method['name']}-{settings}", tables).run(seed, ITERATIONS)


def with_steps(method: str, steps: int, seed: int) -> PlannedRun:
    if steps == 5:  # the default, which `studies.additions` trains, too
        return additions.run(f"sine-k10-{method.removesuffix('-direct')}", "all", seed)
    return run(steps_method("sine", method, steps), seed)


def with_interval(interval: int, seed: int) -> PlannedRun:
    return run({"name": "pamela", "steps": DEPTH, "skip": interval, **DIRECT}, seed)


def runs() -> Iterator[PlannedRun]:
    for seed in range(SEEDS):
        planned = [with_steps(method, steps, seed) for steps in STEPS for method in METHODS]
        planned += [with_interval(interval, seed) for interval in INTERVALS]
        yield from {each.name: each for each in planned}.values()


RUNS = tuple(runs())

if __name__ == "__main__":
    train_runs(RUNS, TASKS, __doc__)
