"""The table: seeds averaged, the best emphasised, what is missing explained."""

from __future__ import annotations

from pathlib import Path

from pathaware.sweep.plan import SweepPlan
from pathaware.sweep.run_store import Result, RunStore
from pathaware.sweep.summary import Outcome, summary

TABLES = {"problem": {"name": "sine"}, "method": {"name": "maml"}}


def outcomes(axes, values) -> list[Outcome]:
    """One outcome per value, which is an error or the reason why there is none."""
    found = []
    for run, value in zip(SweepPlan(TABLES, axes).grid(), values, strict=True):
        result = Result({"result": {"mse": value, "mse_ci95": 0.1}})
        found.append(Outcome(run, None, value) if isinstance(value, str) else Outcome(run, result))
    return found


def table(axes, values):
    return summary("sweep", outcomes(axes, values), RunStore(Path(), tasks=50, split="val"))


def test_seeds_are_averaged_and_the_best_row_is_emphasised():
    axes = {"method.name": ["maml", "pamela"], "training.seed": [0, 1]}
    found = table(axes, [1.0, 3.0, 0.5, 0.7])
    assert found.header == ("method", "MSE", "seeds")
    assert [row.cells for row in found.rows] == [
        ("maml", "2.0000 (0.0000 to 14.7066)", "2 (1.0000–3.0000)"),
        ("pamela", "0.6000 (0.0000 to 1.8745)", "2 (0.5000–0.7000)"),
    ]
    assert [row.emphasis for row in found.rows] == [False, True]
    assert "50 tasks of the validation split" in found.notes[0]


def test_a_row_that_lost_a_seed_says_why_and_is_not_the_best():
    axes = {"training.rate": [0.1, 0.2, 0.3], "training.seed": [0, 1]}
    found = table(axes, [0.1, "failed: no memory", 0.5, 0.7, 0.8, 0.8])
    assert found.rows[0].cells == ("0.1", "0.1000 (0.0000 to 0.2000)", "1 of 2; seed 1 failed: no memory")
    assert [row.emphasis for row in found.rows] == [False, True, False]


def test_runs_that_failed_or_diverged_keep_their_rows():
    found = table({"training.rate": [0.1, 0.2, 0.3]}, [0.5, "failed: no memory", float("nan")])
    assert [row.cells[1] for row in found.rows] == [
        "0.5000 (0.4000 to 0.6000)",
        "failed: no memory",
        "diverged: its result is not a finite number",
    ]
    assert found.numeric == [False, True]
