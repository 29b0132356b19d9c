"""The effect of the divergence guard on a trained run: the same tasks with and without it.

python research/pathaware_research/studies/guard.py RUN [RUN …] [--tasks 10000] [--json guard.json]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from pathaware.core.learner import require_path
from pathaware.training.evaluation import evaluate
from pathaware.training.provenance import write_record
from pathaware.training.run_folder import Run


def effect(run: Run, tasks: int) -> dict[str, Any]:
    """Mean and worst error with and without the guard."""
    learner = require_path(run.load())
    values = {}
    for guard in (False, True):
        learner.guard = guard
        result = evaluate(learner, run.config.problem, tasks=tasks)
        values[guard] = result.values[:, -1].double()
    changed = values[True] != values[False]
    return {
        "method": run.config.method,
        "problem": run.config.problem.label,
        "seed": run.config.training.seed,
        "tasks": tasks,
        "mean_without": values[False].mean().item(),
        "mean_with": values[True].mean().item(),
        "worst_without": values[False].max().item(),
        "worst_with": values[True].max().item(),
        "tasks_changed": int(changed.sum()),
        "not_finite_with": int((~values[True].isfinite()).sum()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [effect(Run.open(folder), options.tasks) for folder in options.runs]
    for row in rows:
        print(
            f"{row['problem']} {row['method']} seed {row['seed']}: mean {row['mean_without']:.4g} → "
            f"{row['mean_with']:.4g}, worst {row['worst_without']:.4g} → {row['worst_with']:.4g}, "
            f"{row['tasks_changed']} of {row['tasks']} tasks changed"
        )
    if options.json:
        write_record(options.json, {"rows": rows}, field="json")


if __name__ == "__main__":
    main()
