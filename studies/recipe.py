"""The worth of each part of the recipe: paired comparisons on validation tasks.

    python -m studies.recipe cifar-fs 5 --workers 4 --start runs/features --teacher runs/teacher

The presets `recipe-DATA-SHOTS` as they are, with one part taken out at a time, with a teacher added, and for
other methods. All runs of a seed are evaluated on the same 2,000 validation tasks, once with single views and
once with mirrored ones. The table has differences to the whole recipe with 95 % intervals over tasks. Records
are kept beside the runs; a run that has one is not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from pathaware.experiments.run_store import Experiment, PlannedRun, Result, RunStore
from pathaware.experiments.statistics import over_tasks, paired_differences
from pathaware.training.evaluation import SnapshotMean, Views, evaluate
from pathaware.training.metric import ACCURACY
from pathaware.training.presets import load_preset
from pathaware.training.provenance import evaluation_record, write_record
from pathaware.training.tables import Table, markdown

TASKS = 2000
WHOLE = "whole"
Settings = Mapping[str, Mapping[str, Any]]

_NO_LAST_LAYER = {"head_rate": 0.0, "head": "learned"}

PARTS: dict[str, tuple[str, Settings]] = {
    WHOLE: ("the recipe", {}),
    "no-start": (
        "without pretraining, and so with batch statistics",
        {"training": {"start": ""}, "problem": {"statistics": "batch"}},
    ),
    "batch": (
        "batch norm by the statistics of each support and query set",
        {"problem": {"statistics": "batch"}},
    ),
    "learned-head": ("a learned last layer instead of class means", {"training": {"head": "learned"}}),
    "no-average": (
        "without the average and its distillation",
        {"training": {"average": 0.0, "distil": 0.0, "evaluate_average": False}},
    ),
    "no-distil": ("the average without distillation", {"training": {"distil": 0.0}}),
    "cutmix": ("with CutMix of queries", {"problem": {"cutmix": 0.5}}),
    "erase": ("with erased squares", {"problem": {"erase": 0.4}}),
    "no-dropout": ("without dropout", {"training": {"dropout": 0.0}}),
    "no-classify": ("without all-class classification", {"training": {"classify": 0.0, "classify_end": 0.0}}),
    "one-rate": (
        "one learning rate, no warm-up",
        {"training": {"rate": 5e-4, "rule_rate": 0.0, "warmup": 0}},
    ),
    "no-head-rate": ("the same initial step size in all layers", {"training": {"head_rate": 0.0}}),
    "mirror-support": ("mirrored support sets in training", {"problem": {"mirror_support": True}}),
    "no-mirror-support": ("no mirrored support sets in training", {"problem": {"mirror_support": False}}),
    "maml": ("MAML instead of PAMELA", {"method": {"name": "maml"}, "training": {"head_rate": 0.0}}),
    "meta-sgd": ("Meta-SGD, 5 steps, instead of PAMELA", {"method": {"name": "meta-sgd", "steps": 5}}),
    "r2d2": ("R2-D2 instead of PAMELA", {"method": {"name": "r2d2"}, "training": _NO_LAST_LAYER}),
    "prototypical": (
        "prototypical networks instead of PAMELA",
        {"method": {"name": "prototypical"}, "training": _NO_LAST_LAYER},
    ),
}
"""Title and changed settings of each variant, by the name of its runs."""
TAUGHT = "teacher"


def experiment(data: str, shots: int, part: str, start: str, teacher: str) -> Experiment:
    """A variant of the recipe; `start` and `teacher` are folders of pretrainings."""
    tables = load_preset(f"recipe-{data}-{shots}shot")
    if start:
        tables["training"]["start"] = start
    changed = {"training": {"teacher": teacher, "distil": 0.3}} if part == TAUGHT else PARTS[part][1]
    if "method" in changed:
        tables["method"] = {}
    return Experiment(f"recipe-{data}-{shots}shot-{part}", tables).with_settings(changed)


def train(store: RunStore, planned: PlannedRun) -> None:
    """Train and evaluate a run with single and mirrored views, and the mean of its snapshots."""
    store.train_unless_stopped(planned, lambda: False)
    run, problem = store.open(planned), planned.config.problem
    for name, views, snapshots in EVALUATIONS:
        path = record_path(store, planned, name)
        if name and not path.exists():
            learner = SnapshotMean(run.load_snapshots()) if snapshots else run.load()
            result = evaluate(learner, problem, split=store.split, tasks=TASKS, views=views)
            draft = path.with_name(f"{path.name}.new")
            write_record(draft, evaluation_record(run, result))
            os.replace(draft, path)


EVALUATIONS: tuple[tuple[str, Views, bool], ...] = (
    ("", "single", False),
    ("mirror", "mirror", False),
    ("snapshots", "mirror", True),
)
"""Ending of the record's name, views, and whether snapshots are averaged."""


def record_path(store: RunStore, planned: PlannedRun, name: str) -> Path:
    usual = store.record_path(planned)
    return usual.with_name(f"{usual.stem}-{name}.json") if name else usual


def table(store: RunStore, parts: Mapping[str, list[PlannedRun]]) -> Table:
    """Accuracy of every variant, and the paired difference to the whole recipe, with mirrored views."""

    def results(part: str, name: str) -> list[Result]:
        paths = [record_path(store, planned, name) for planned in parts[part]]
        return [Result.of(json.loads(path.read_text(encoding="utf-8"))) for path in paths if path.exists()]

    rows = []
    for part in parts:
        title = "with a stored teacher" if part == TAUGHT else PARTS[part][0]
        cells = [title]
        for name, _, _ in EVALUATIONS:
            values = [ACCURACY.with_interval(*each.value(ACCURACY)) for each in results(part, name)]
            cells.append(", ".join(values) or "–")
        differences = paired(results(part, "mirror"), results(WHOLE, "mirror"))
        rows.append([*cells, differences])
    return Table.of("", ["", "single views", "mirrored", "snapshots, mirrored", "difference, mirrored"], rows)


def paired(one: list[Result], other: list[Result]) -> str:
    """The mean difference on the same tasks, for each seed that both have."""
    # Variants differ in settings that `paired_differences` would refuse, and in nothing else.
    found = []
    for result in one:
        same = [each for each in other if each.seed == result.seed]
        if same and same[0].iterations == result.iterations:
            values = paired_differences([result], [_with_config(same[0], result)])
            found += [ACCURACY.with_interval(float(v.mean()), over_tasks(v)) for v in values]
    return ", ".join(found) or "–"


def _with_config(result: Result, like: Result) -> Result:
    """A result that may be compared with `like` although it was trained with other settings."""
    record = {**result.record, "config": like.record["config"]}
    return Result(record, like.signature, result.iterations, result.seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", choices=["cifar-fs", "miniimagenet"])
    parser.add_argument("shots", type=int, choices=[1, 5])
    parser.add_argument("--parts", help="variants, separated by commas; by default all that apply")
    parser.add_argument("--iterations", type=int, default=6_000)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1, help="processes, one run each, on one GPU")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--start", default="", help="pretraining to start from instead of the preset's")
    parser.add_argument("--teacher", default="", help="pretraining that teaches; adds a variant")
    parser.add_argument("--out", type=Path, default=Path("recipe"), help="folder of runs and records")
    options = parser.parse_args()
    shown = "no-mirror-support" if options.shots == 1 else "mirror-support"
    usual = [part for part in PARTS if "mirror-support" not in part or part == shown]
    names = options.parts.split(",") if options.parts else [*usual, *([TAUGHT] if options.teacher else [])]
    if unknown := [name for name in names if name not in (*PARTS, TAUGHT)]:
        parser.error(f"no such variant: {unknown[0]}; there are {', '.join((*PARTS, TAUGHT))}")
    parts = {}
    for name in dict.fromkeys([WHOLE, *names]):
        variant = experiment(options.data, options.shots, name, options.start, options.teacher)
        variant = variant.with_settings({"training": {"precision": options.precision}})
        parts[name] = [variant.run(seed, options.iterations) for seed in range(options.seeds)]
    store = RunStore(options.out, tasks=TASKS, split="val")
    store.create()
    with ProcessPoolExecutor(options.workers) as pool:
        waiting = {pool.submit(train, store, run): run for runs in parts.values() for run in runs}
        for each in as_completed(waiting):
            each.result()
            print(f"{waiting[each].name}: done", flush=True)
    print(markdown(table(store, parts)))


if __name__ == "__main__":
    main()
