"""The paper's ablation (Table 4) on sine waves: what Q, P and the interval of skips add.

    python -m pathaware_research.studies.ablation --workers 2

K = 10, our training settings, 3,000 iterations, the same 2,000 test waves for every row, so that rows can be
compared wave by wave. Q is learned directly.
"""

from __future__ import annotations

from collections.abc import Iterator

from pathaware.sweep.run_store import PlannedRun
from pathaware.training.presets import load_preset
from pathaware_research.experiments import Experiment
from pathaware_research.paper.tables import ABLATION_ROWS, speeds
from pathaware_research.studies import additions, train_runs

TASKS = 2000
ITERATIONS = 3000
SEEDS = 3
CLAIMS = {
    "Q helps": ("q", "maml"),
    "Q per step helps, beyond one Q₀ for all steps": ("q", "q0-multiple"),
    "P helps without Q": ("p", "maml"),
    "P helps beside Q": ("qp2", "q"),
    "Q helps beside P": ("qp2", "p"),
    "several steps with Q are better than one with Q₀": ("q", "q0-single"),
    "w = 1 is level with w = 2": ("qp1", "qp2"),
    "w = 3 is level with w = 2": ("qp3", "qp2"),
    "w = 4 is level with w = 2": ("qp4", "qp2"),
}
"""Claims of the paper, and the rows that are compared for each: the first minus the second."""


SHARED = {"maml": "sine-k10-maml", "qp2": "sine-k10-pamela"}
"""Rows that `studies.additions` trains, too."""


def run(key: str, seed: int) -> PlannedRun:
    if key in SHARED:
        return additions.run(SHARED[key], "all", seed)
    tables = load_preset("table3-sine-k10-maml")
    _, method = ABLATION_ROWS[key]
    _, direct = speeds("sine", method)
    return Experiment(f"ablation-sine-k10-{key}", {**tables, "method": {**method, **direct}}).run(
        seed, ITERATIONS
    )


def runs() -> Iterator[PlannedRun]:
    for seed in range(SEEDS):
        for key in ABLATION_ROWS:
            yield run(key, seed)


RUNS = tuple(runs())

if __name__ == "__main__":
    train_runs(RUNS, TASKS, __doc__)
