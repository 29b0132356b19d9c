"""The recipe: its accuracy on test tasks for several methods, and the worth of each part on validation tasks.

    python -m pathaware_research.studies.recipe cifar-fs 5 --parts whole,maml,meta-sgd --seeds 3 --test
    python -m pathaware_research.studies.recipe cifar-fs 5 --teacher runs/teacher

The presets `recipe-DATA-SHOTS` as they are, with one part taken out or added at a time, and for other
methods. Seed s starts from the pretraining of seed s. All runs are evaluated on the same 2,000 validation
tasks, with single and with mirrored views. With `--test`, also on 2,000 test tasks with mirrored views:
alone, with logits centred over the queries of a task (on validation tasks, too), and with all queries
jointly: by class means, and by adapting again. A record is not made twice. `pages.recipe_page` renders them.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathaware.sweep.run_store import PlannedRun
from pathaware.training.evaluation import Views, evaluate
from pathaware.training.metric import ACCURACY
from pathaware.training.presets import RECIPE_ITERATIONS, load_preset
from pathaware.training.provenance import evaluation_record, write_record
from pathaware.training.refinement import Refinement
from pathaware.training.tables import NOTHING, Table
from pathaware_research.experiments import Experiment, Result
from pathaware_research.paired import mean_lead, paired_differences
from pathaware_research.records import RESULTS, Records, RecordStore

TASKS = 2000
WHOLE = "whole"
Settings = Mapping[str, Mapping[str, Any]]

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
    "learned-head": ("a learned last layer", {"training": {"head": "learned"}}),
    "projected": ("class means in a learned subspace", {"training": {"head": "projected"}}),
    "prototypes": ("class means of all features", {"training": {"head": "prototypes"}}),
    "no-classify": ("without all-class classification", {"training": {"classify": 0.0, "classify_end": 0.0}}),
    "no-mirror-support": ("no mirrored support sets in training", {"problem": {"mirror_support": False}}),
    "mirror-support": ("mirrored support sets in training", {"problem": {"mirror_support": True}}),
    "average": (
        "with the average and its distillation",
        {"training": {"average": 0.995, "distil": 0.5, "evaluate_average": True}},
    ),
    "dropout": ("with dropout", {"training": {"dropout": 0.1}}),
    "cutmix": ("with CutMix of queries", {"problem": {"cutmix": 0.5}}),
    "erase": ("with erased squares", {"problem": {"erase": 0.4}}),
    "faster": ("five times the learning rate", {"training": {"rate": 5e-4}}),
    "rates": (
        "a higher learning rate for Φ, warm-up, larger first steps of the last layer",
        {"training": {"rate": 3e-4, "rule_rate": 1e-3, "warmup": 500, "head_rate": 0.1}},
    ),
    "maml": ("MAML instead of PAMELA", {"method": {"name": "maml"}}),
    "meta-sgd": ("Meta-SGD, 5 steps, instead of PAMELA", {"method": {"name": "meta-sgd", "steps": 5}}),
    "r2d2": ("R2-D2 instead of PAMELA", {"method": {"name": "r2d2"}, "training": {"head": "learned"}}),
    "prototypical": (
        "prototypical networks instead of PAMELA",
        {"method": {"name": "prototypical"}, "training": {"head": "learned"}},
    ),
}
"""Title and changed settings of each variant, by the name of its runs."""
TAUGHT, WITH_TEACHER = "teacher", "with a stored teacher"


def experiment(data: str, shots: int, part: str, start: str, teacher: str) -> Experiment:
    """A variant of the recipe; `start` and `teacher` are folders of pretrainings."""
    tables = load_preset(f"recipe-{data}-{shots}shot")
    tables["training"]["start"] = start
    changed = {"training": {"teacher": teacher}} if part == TAUGHT else PARTS[part][1]
    if "method" in changed:
        tables["method"] = {}
    return Experiment(f"recipe-{data}-{shots}shot-{part}", tables).with_settings(changed)


def parts(data: str, shots: int) -> list[str]:
    """The whole recipe and the variants that change something of it."""
    configs = {part: experiment(data, shots, part, "features", "").config() for part in PARTS}
    return [WHOLE, *(part for part in PARTS if configs[part] != configs[WHOLE])]


@dataclass(frozen=True)
class Evaluation:
    """One way to evaluate a run; `ending` is that of the record's name."""

    ending: str
    split: str
    views: Views
    refine: Refinement = "none"


SINGLE = Evaluation("", "val", "single")
MIRRORED = Evaluation("-mirror", "val", "mirror")
CENTRED = Evaluation("-mirror-centre", "val", "mirror", "centre")
TEST = Evaluation("-test", "test", "mirror")
TEST_CENTRED = Evaluation("-test-centre", "test", "mirror", "centre")
TEST_MEANS = Evaluation("-test-means", "test", "mirror", "means")
JOINT = Evaluation("-test-joint", "test", "mirror", "sinkhorn")


def train(store: RecordStore, planned: PlannedRun, evaluations: Sequence[Evaluation]) -> None:
    """Train a run and evaluate it in several ways."""
    run, problem = store.open(planned), planned.config.problem
    if not run.finished or store.result(planned) is None:
        store.complete(planned, lambda: False)
    for each in evaluations:
        path = store.results_folder / f"{planned.name}{each.ending}.json"
        if not path.exists() and path.stem not in store.packed:
            result = evaluate(
                run.load(), problem, split=each.split, tasks=TASKS, views=each.views, refine=each.refine
            )
            draft = path.with_name(f"{path.name}.new")
            write_record(draft, evaluation_record(run, result))
            os.replace(draft, path)


def results(records: Records, data: str, shots: int, part: str, evaluation: Evaluation) -> list[Result]:
    """The results of a variant, one per seed."""
    return read_results(records, rf"recipe-{data}-{shots}shot-{part}-[0-9]+-seed[0-9]+{evaluation.ending}")


def read_results(records: Records, name: str) -> list[Result]:
    """The results of the runs whose names match a regular expression."""
    return [Result(record) for record in records.named(name).values()]


def worth(records: Records, data: str, shots: int) -> Table:
    """Validation accuracy of every variant, and the paired difference to the whole recipe."""
    whole = results(records, data, shots, WHOLE, MIRRORED)
    rows = []
    for part, title in {**{name: title for name, (title, _) in PARTS.items()}, TAUGHT: WITH_TEACHER}.items():
        found = [results(records, data, shots, part, each) for each in (SINGLE, MIRRORED)]
        if found[1]:
            cells = [", ".join(_accuracy(result) for result in each) for each in found]
            rows.append([title, *cells, NOTHING if part == WHOLE else paired(found[1], whole)])
    return Table.of("", ["", "single views", "mirrored views", "difference, mirrored"], rows)


def _accuracy(result: Result) -> str:
    return f"{100 * result.value(ACCURACY)[0]:.2f}"


def paired(one: list[Result], other: list[Result]) -> str:
    """The mean difference on the same tasks and seeds, with its interval over tasks and seeds."""
    # Variants differ in settings that `paired_differences` would refuse, and in nothing else.
    values = []
    for result in one:
        same = [each for each in other if (each.seed, each.iterations) == (result.seed, result.iterations)]
        values += paired_differences([result], [_with_config(each, result) for each in same])
    return mean_lead(values) if values else NOTHING


def _with_config(result: Result, like: Result) -> Result:
    """A result that may be compared with `like` although it was trained with other settings."""
    config = like.record["config"]
    length = {"iterations": result.iterations, "seed": result.seed}
    return Result({**result.record, "config": {**config, "training": {**config["training"], **length}}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", choices=["cifar-fs", "miniimagenet"])
    parser.add_argument("shots", type=int, choices=[1, 5])
    parser.add_argument("--parts", help="variants, separated by commas; by default all that apply")
    parser.add_argument("--iterations", type=int, help="by default those of the preset")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--test", action="store_true", help="evaluate on test tasks as well")
    parser.add_argument("--workers", type=int, default=1, help="processes, one run each, on one GPU")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument(
        "--start", default="runs/pretrain-{data}-conv4-seed{seed}", help="pretraining of each seed"
    )
    parser.add_argument("--teacher", default="", help="pretraining that teaches; adds a variant")
    parser.add_argument("--out", type=Path, default=Path("recipe"), help="folder of the runs")
    parser.add_argument("--records", type=Path, default=RESULTS, help="folder of the records")
    options = parser.parse_args()
    usual = [*parts(options.data, options.shots), *([TAUGHT] if options.teacher else [])]
    names = options.parts.split(",") if options.parts else usual
    if unknown := [name for name in names if name not in (*PARTS, TAUGHT)]:
        parser.error(f"no such variant: {unknown[0]}; there are {', '.join((*PARTS, TAUGHT))}")
    runs = []
    for name in dict.fromkeys(names):
        for seed in range(options.seeds):
            start = options.start.format(data=options.data, seed=seed)
            variant = experiment(options.data, options.shots, name, start, options.teacher)
            variant = variant.with_settings({"training": {"precision": options.precision}})
            runs.append(variant.run(seed, options.iterations or RECIPE_ITERATIONS[options.data]))
    evaluations = (
        SINGLE,
        MIRRORED,
        *((CENTRED, TEST, TEST_CENTRED, TEST_MEANS, JOINT) if options.test else ()),
    )
    store = RecordStore(options.out, records=options.records, tasks=TASKS, split="val")
    store.create()
    with ProcessPoolExecutor(options.workers) as pool:
        waiting = {pool.submit(train, store, run, evaluations): run for run in runs}
        for each in as_completed(waiting):
            each.result()
            print(f"{waiting[each].name}: done", flush=True)


if __name__ == "__main__":
    main()
