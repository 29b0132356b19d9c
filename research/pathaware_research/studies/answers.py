"""How far answers can be relied on: planted labels, unknown images, calibration, and what to label next.

    # results/use/answers-labels-glyphs.json
    python -m pathaware_research.studies.answers labels glyphs --tasks 300
    # results/use/answers-open-set-glyphs.json
    python -m pathaware_research.studies.answers open-set glyphs --tasks 2000
    # results/use/answers-suggest-glyphs.json
    python -m pathaware_research.studies.answers suggest glyphs --tasks 300
    # results/use/answers-learner-glyphs.json
    python -m pathaware_research.studies.answers learner glyphs --tasks 100

Instead of `glyphs`, name the folder of any run on images. All choices were made on validation classes
(`--split val`); the records are of test classes, 5-way 5-shot. They have more rules, which were tried and
left out: influence, entropy, core sets and expected gain. The commit that a record names has them.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from pathaware.core.seeding import generator
from pathaware.data.catalogue import open_store
from pathaware.inference.calibration import fit_cell, thresholds
from pathaware.inference.export.learner import export_learner, open_learner
from pathaware.inference.open_set import SCORES, area, false_positives, open_tasks, refusals, scores
from pathaware.inference.suggest import coverage, unit_features
from pathaware.inference.trained_model import AdaptedClassifier, SupportSet, TrainedModel, arrange, find_run
from pathaware.training.checksummed import tensor_digest
from pathaware.training.evaluation import interval_over_tasks
from pathaware.training.metric import reliability
from pathaware.training.provenance import revision, write_record
from pathaware.training.run_folder import Run

WAYS, SHOTS = 5, 5
SHARES = (0.01, 0.05, 0.1)
CALIBRATION_TASKS = 600
"""Tasks of validation classes that give thresholds and the temperature."""


def with_interval(values: Tensor) -> dict[str, float]:
    return {"mean": values.double().mean().item(), "ci95": interval_over_tasks(values.double())}


def drawn_tasks(
    model: TrainedModel, split: str, tasks: int, seed: int, per_class: int
) -> Iterator[tuple[torch.Generator, Tensor]]:
    """Yield a generator and pixels `[ways, per_class, C, size, size]` of a task."""
    problem: Any = model.config.problem
    store = open_store(problem.data, Path(problem.data_dir) if problem.data_dir else None)
    spans, images = store.split(split), store.tensor("cpu")
    for task in range(tasks):
        random = generator(seed, "answers", split, task)
        classes = torch.randperm(len(spans), generator=random)[:WAYS].tolist()
        chosen = [
            int(spans.starts[c]) + torch.randperm(int(spans.counts[c]), generator=random)[:per_class]
            for c in classes
        ]
        yield random, torch.stack([images[each] for each in chosen])


def labels(model: TrainedModel, split: str, tasks: int, seed: int) -> dict[str, Any]:
    """Plant wrong labels in support sets, rank all images by suspicion, and count what is found.

    `1 planted`: the share of tasks in which the wrong label is among the first one or two of the ranking.
    `2 planted`: the share of both wrong labels that is among the first two, and among the first four.
    """
    learner = model.learner(WAYS)
    found: dict[str, dict[str, list[float]]] = {}
    for random, pixels in drawn_tasks(model, split, tasks, seed, SHOTS):
        x = model.image_input.normalised(pixels.flatten(0, 1))
        truth = torch.arange(WAYS).repeat_interleave(SHOTS)
        places = torch.randperm(len(truth), generator=random)[:2]
        shift = torch.randint(1, WAYS, (2,), generator=random)
        for planted in (1, 2):
            y = truth.clone()
            wrong = places[:planted]
            y[wrong] = (y[wrong] + shift[:planted]) % WAYS
            for name, score in suspicions(learner, x, y).items():
                ranked = score.argsort().tolist()
                entry = found.setdefault(f"{planted} planted", {})
                for first in (planted, 2 * planted):
                    hits = len(set(ranked[:first]) & set(wrong.tolist())) / planted
                    entry.setdefault(f"{name}, first {first}", []).append(hits)
    return {
        count: {
            name: {**with_interval(torch.tensor(hits)), "tasks": len(hits)} for name, hits in rows.items()
        }
        for count, rows in found.items()
    }


def suspicions(learner: Any, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Scores `[S]` of support images by two rules; the lowest is the most suspicious."""
    count, own = len(y), y[:, None]
    rest = torch.stack(
        [torch.arange(count)[row] for row in ~torch.eye(count, dtype=torch.bool)]
    )  # [S, S - 1]
    with torch.no_grad():
        left_out = learner.predictions_per_step(x[rest], y[rest], x[:, None], queries="alone")
        fitted = learner.predictions_per_step(x[None], y[None], x[None], queries="alone").outputs[-1][0]
    without = left_out.outputs[-1][:, 0]
    others = without.scatter(1, own, -torch.inf).amax(1)
    return {
        "learning without the image": without.gather(1, own)[:, 0] - others,
        "loss": fitted.log_softmax(-1).gather(1, own)[:, 0],
    }


def open_set(model: TrainedModel, split: str, tasks: int, seed: int) -> dict[str, Any]:
    """Thresholds and temperature from validation classes, measured on tasks with foreign queries."""
    size: dict[str, Any] = {"ways": WAYS, "shots": SHOTS, "queries": 5}
    fitted_on = list(open_tasks(model, split="val", tasks=CALIBRATION_TASKS, seed=0, foreign=False, **size))
    cell = fit_cell(WAYS, SHOTS, fitted_on)
    calm, temperature = scores(fitted_on, cell.spread_weight), cell.temperature
    found = list(open_tasks(model, split=split, tasks=tasks, seed=seed, **size))
    known, foreign = (scores(found, cell.spread_weight, foreign=each) for each in (False, True))
    logits = torch.stack([task.logits for task in found])
    truth = torch.stack([task.labels for task in found])
    before, after = reliability(logits, truth), reliability(logits, truth, temperature)
    rows = {}
    for name in SCORES:
        limits = thresholds(calm[name].flatten(), SHARES)
        rows[name] = {
            "auroc": area(known[name], foreign[name]),
            "fpr95": false_positives(known[name], foreign[name]),
            "refused": [
                dataclasses.asdict(refusals(share, limit, known[name], foreign[name]))
                for share, limit in zip(SHARES, limits, strict=True)
            ],
        }
    return {
        "calibration_tasks": CALIBRATION_TASKS,
        "spread_weight": cell.spread_weight,
        "accuracy": with_interval((logits.argmax(-1) == truth).double().mean(1)),
        "temperature": temperature,
        "calibration_error": before.error,
        "calibrated_error": after.error,
        "reliability_before": before.bins,
        "reliability_after": after.bins,
        "risk_coverage": after.risk_coverage,
        "scores": rows,
    }


LABELLED, POOL, BUDGET, QUERIES = 1, 8, 5, 10


def suggest(model: TrainedModel, split: str, tasks: int, seed: int) -> dict[str, Any]:
    """Accuracy after labelling five more images, chosen by several rules, with paired differences.

    Five classes with one labelled image each; 40 unlabelled images, eight per class.
    """
    accuracies: dict[str, list[float]] = {}
    for random_generator, pixels in drawn_tasks(model, split, tasks, seed, LABELLED + POOL + QUERIES):
        first, pool, query = pixels.split([LABELLED, POOL, QUERIES], dim=1)
        truth = torch.arange(WAYS).repeat_interleave(POOL)
        support = SupportSet(tuple("abcde"), first.flatten(0, 1), torch.arange(WAYS))
        unlabelled = pool.flatten(0, 1)
        adapted = model.adapt(support.pixels, support.labels, WAYS)
        for name, rule in RULES.items():
            chosen = rule(adapted, support, unlabelled, random_generator)
            larger = model.adapt(
                torch.cat([support.pixels, unlabelled[chosen]]),
                torch.cat([support.labels, truth[chosen]]),
                WAYS,
            )
            right = larger.probabilities(query.flatten(0, 1)).argmax(1) == torch.arange(
                WAYS
            ).repeat_interleave(QUERIES)
            accuracies.setdefault(name, []).append(right.double().mean().item())
    values = {name: torch.tensor(each, dtype=torch.float64) for name, each in accuracies.items()}
    return {
        "labelled": LABELLED,
        "pool": POOL,
        "budget": BUDGET,
        "accuracy": {name: with_interval(each) for name, each in values.items()},
        "more_than_random": {
            name: with_interval(each - values["random"]) for name, each in values.items() if name != "random"
        },
        "coverage_more_than": {
            name: with_interval(values["coverage"] - each)
            for name, each in values.items()
            if name != "coverage"
        },
    }


Choice = Callable[[AdaptedClassifier, SupportSet, Tensor, torch.Generator], list[int]]


def _random(
    adapted: AdaptedClassifier, support: SupportSet, pool: Tensor, seed: torch.Generator
) -> list[int]:
    return torch.randperm(len(pool), generator=seed)[:BUDGET].tolist()


def _coverage(
    adapted: AdaptedClassifier, support: SupportSet, pool: Tensor, seed: torch.Generator
) -> list[int]:
    return coverage(unit_features(adapted, support.pixels), unit_features(adapted, pool), BUDGET)


RULES: dict[str, Choice] = {"random": _random, "coverage": _coverage}


def learner(model: TrainedModel, split: str, tasks: int, seed: int) -> dict[str, Any]:
    """The largest difference between probabilities of the exported learner, in onnxruntime, and ours."""
    labels, differences = torch.arange(WAYS), []
    with TemporaryDirectory() as folder:
        done = export_learner(model, WAYS, 1, Path(folder) / "learner.onnx", tasks=1)
        learn = open_learner(done.path)
        for _, pixels in drawn_tasks(model, split, tasks, seed, 1 + QUERIES):
            support, queries = pixels[:, 0], pixels[:, 1:].flatten(0, 1)
            order = arrange(support, labels, WAYS)
            found = learn(support[order].numpy(), labels[order].numpy(), queries.numpy())
            expected = model.adapt(support, labels, WAYS).probabilities(queries).numpy()
            differences.append(float(abs(found - expected).max()))
    return {"bytes": done.bytes, "largest_difference": max(differences), "differences": differences}


STUDIES = {"labels": labels, "open-set": open_set, "suggest": suggest, "learner": learner}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("run", help="a shipped model or the folder of a run")
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--split", default="test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="file of the record")
    options = parser.parse_args()
    torch.set_num_threads(1)
    revision()  # of the code that runs, whatever is committed meanwhile
    model = TrainedModel.open(options.run, "cpu")
    found = STUDIES[options.study](model, options.split, options.tasks, options.seed)
    problem: Any = model.config.problem
    tensors, _ = Run.open(find_run(options.run)).learned()
    record = options.record or Path("results/use") / f"answers-{options.study}-{problem.data}.json"
    write_record(
        record,
        {
            "study": options.study,
            "data": problem.data,
            "method": model.config.method,
            "trained": {"ways": problem.ways, "shots": problem.shots},
            "tensors_sha256": tensor_digest(tensors),
            "ways": WAYS,
            "shots": LABELLED if options.study in ("suggest", "learner") else SHOTS,
            "split": options.split,
            "tasks": options.tasks,
            "seed": options.seed,
            "measured": found,
        },
    )
    print(record)


if __name__ == "__main__":
    main()
