"""Why Meta-SGD with one step is level with PAMELA with five in the same time: length against steps.

    python -m pathaware_research.studies.one_step --workers 1         # CIFAR-FS on a GPU

CIFAR-FS 5-shot, the paper's settings, bf16. Each method is trained for the number of iterations that equal
time gives PAMELA (7,000), for that of Tables 1 and 2 (12,000), and for what equal time gives Meta-SGD
(21,000); PAMELA also with a single step.
"""

from __future__ import annotations

from typing import Any

from pathaware.sweep.run_store import PlannedRun
from pathaware.training.presets import load_preset
from pathaware_research.experiments import Experiment
from pathaware_research.studies import train_runs, with_q_learned_directly

TASKS = 2000
LENGTHS = (7000, 12_000, 21_000)
PRECISION = {"training": {"precision": "bf16"}}


def experiment(method: str, **settings: Any) -> Experiment:
    tables = with_q_learned_directly(load_preset(f"table2-cifar-fs-{method}-5shot"))
    tables["method"].update(settings)
    name = "-".join(["cifar-fs", method, *(f"{value}{key}" for key, value in settings.items() if value)])
    return Experiment(f"{name}-5shot", tables).with_settings(PRECISION)


# Without a later step there is nothing to skip to, so the interval of skips does not matter.
ONE_STEP = [experiment("pamela", steps=1, skip=skip) for skip in (None, 1, 2)]
METHODS = {
    "Meta-SGD, 1 step": [experiment("meta-sgd")],
    "PAMELA, 1 step": ONE_STEP,
    "PAMELA, 5 steps": [experiment("pamela")],
}
"""Rows of the table: the experiments that are the same training."""
RUNS: tuple[PlannedRun, ...] = tuple(
    rows[0].run(0, length) for rows in METHODS.values() for length in LENGTHS
)

if __name__ == "__main__":
    train_runs(RUNS, TASKS, __doc__)
