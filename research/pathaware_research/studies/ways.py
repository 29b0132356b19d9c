"""Accuracy of a run with another number of classes than it was trained with.

python research/pathaware_research/studies/ways.py --data glyphs --iterations 3000 \\
    --json results/use/ways-glyphs.json

Trains a model for five classes and one for each other number, then evaluates on new tasks: the five-class
model converted by `pathaware.inference.change_ways`, the same with unscaled step sizes, and the model trained
for that number. Evaluation is inductive: each query is classified by itself, as in use.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

from pathaware.core.few_shot import FewShotLearner
from pathaware.inference.change_ways import change_ways
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate
from pathaware.training.provenance import write_record
from pathaware.training.run_folder import Run
from pathaware.training.train import train

WAYS, OTHERS = 5, (2, 3, 8, 10, 20)


def config(data: str, classes: int, shots: int, iterations: int, width: int, rate: float) -> Config:
    """Return the settings of the shipped model, for any data set."""
    problem = {"name": "classification", "data": data, "ways": classes, "shots": shots, "queries": 5}
    return Config.from_dict(
        {
            "problem": {**problem, "width": width, "zero_head": True},
            "method": {"name": "pamela", "rate": 1.0, "q_start": rate},
            "training": {"iterations": iterations, "rate": 2e-3, "validate": 0, "save": 0},
        }
    )


def unscaled_step_sizes() -> AbstractContextManager[Any]:
    """Keep the trained step sizes, whatever the number of classes."""
    return mock.patch("pathaware.inference.change_ways._growth", lambda q, _, after: q.new_ones(len(after)))


def accuracy(learner: FewShotLearner, problem: Any, tasks: int) -> dict[str, float]:
    summary = evaluate(learner, problem, tasks=tasks, inductive=True).summary()
    return {name: summary[name] for name in ("accuracy", "accuracy_ci95")}


def measure(run: Run, own: dict[int, Run], shots: int, tasks: int) -> Iterator[dict[str, Any]]:
    learned, inputs = run.learned()
    device = run.config.training.torch_device
    for classes in sorted((WAYS, *own)):
        problem: Any = dataclasses.replace(run.config.problem, ways=classes, shots=shots)
        row: dict[str, Any] = {"classes": classes, "shots": shots, "tasks": tasks}
        row["five, by the rule"] = accuracy(
            change_ways(run.config, learned, inputs, classes, device), problem, tasks
        )
        if classes != WAYS:
            with unscaled_step_sizes():
                learner = change_ways(run.config, learned, inputs, classes, device)
            row["same rates"] = accuracy(learner, problem, tasks)
            row["trained for it"] = accuracy(own[classes].load(), problem, tasks)
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", default="glyphs")
    parser.add_argument("--shots", type=int, default=1)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.1, help="initial value of Q")
    parser.add_argument("--iterations", type=int, default=3000)
    parser.add_argument("--tasks", type=int, default=600)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:

        def trained(classes: int) -> Run:
            given = (options.shots, options.iterations, options.width, options.rate)
            settings = config(options.data, classes, *given)
            return train(settings, Path(folder) / str(classes))

        own = {classes: trained(classes) for classes in OTHERS}
        rows = []
        for row in measure(trained(WAYS), own, options.shots, options.tasks):
            rows.append(row)
            print(json.dumps(row), flush=True)
    if options.json:
        settings = {**vars(options), "json": None, "trained_ways": WAYS, "seed": 0, "inductive": True}
        write_record(options.json, {"settings": settings, "rows": rows}, field="json")


if __name__ == "__main__":
    main()
