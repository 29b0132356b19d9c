"""Trained models on classes of other data sets than they were trained on, without training again.

    python -m pathaware_research.studies.cross_domain paper/runs/*  # on all data sets that are imported
    python -m pathaware_research.studies.cross_domain paper/runs/* --data omniglot

Each run is evaluated on 2,000 test tasks of each data set, with the ways and shots of its training, as
`pathaware evaluate RUN --data NAME --tasks 2000` does. Its own data set is left out, which the tables have,
and so are data sets made of the same images, whose test classes it may have been trained on.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pathaware.data.catalogue import GLYPHS, imported_stores
from pathaware.inference.change_ways import load_for
from pathaware.training.evaluation import evaluate
from pathaware.training.provenance import evaluation_record, write_record
from pathaware.training.run_folder import Run
from pathaware_research.records import RESULTS, Records

TASKS = 2000
DATA = {
    "miniimagenet": "miniImageNet",
    "cifar-fs": "CIFAR-FS",
    "fc100": "FC100",
    "omniglot": "Omniglot",
    "glyphs": "glyphs",
}
"""Titles of the data sets that models are evaluated on."""
SAME_IMAGES = ({"cifar-fs", "fc100"}, {"miniimagenet", "tieredimagenet"})
"""Data sets of the same images with other splits: test classes of one are training classes of the other."""
METHODS = {"pamela": "PAMELA, Q learned directly", "meta-sgd": "Meta-SGD", "maml": "MAML"}
TRAINED_ON = ("miniimagenet", "cifar-fs")


SEEDS = {"fc100": 2, "omniglot": 2}
"""The seed of the runs in a column, 0 unless it is here. All methods of a column have the same."""


def run_name(trained: str, method: str, shots: int, evaluated: str) -> str:
    """The run of a cell of the table."""
    return f"{trained}-{method}-{shots}shot-12000-seed{SEEDS.get(evaluated, 0)}"


def shares_classes(one: str, other: str) -> bool:
    """True if test classes of one data set can be training classes of the other."""
    return any({one, other} <= same for same in SAME_IMAGES)


def measure(run: Run, data: str, tasks: int = TASKS, device: str = "auto") -> dict[str, Any]:
    """The record of a run on the test classes of another data set."""
    learner, problem = load_for(run, device, data=data)
    return evaluation_record(run, evaluate(learner, problem, tasks=tasks))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a trained run")
    parser.add_argument("--data", action="append", help="data set to evaluate on; can be repeated")
    parser.add_argument("--tasks", type=int, default=TASKS, help="test tasks per run and data set")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--records", type=Path, default=RESULTS, help="folder of the records")
    options = parser.parse_args(arguments)
    here = {GLYPHS, *(path.name for path in imported_stores())}
    there = Records("cross-domain")
    chosen = options.data or [name for name in DATA if name in here]
    # Data sets are the outer loop, so that the images of one are converted once for runs of the same size.
    for data in chosen:
        for folder in options.runs:
            run = Run.open(folder)
            trained_on = getattr(run.config.problem, "data", None)
            target = options.records / f"{folder.name}-on-{data}.json"
            if (
                target.exists()
                or target.stem in there
                or data == trained_on
                or shares_classes(data, str(trained_on))
            ):
                continue
            record = measure(run, data, options.tasks, options.device)
            write_record(target, record)
            found = record["result"]
            print(f"{target}: {found['accuracy']:.4f} ± {found['accuracy_ci95']:.4f}", flush=True)


if __name__ == "__main__":
    main()
