"""Accuracy of `photos` by data set, ways and shots, beside simple classifiers of the same features."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import torch

from pathaware.core.few_shot import FewShotLearner
from pathaware.inference.change_ways import load_for
from pathaware.inference.trained_model import SHIPPED
from pathaware.training.checksummed import CHECKPOINT, tensor_digest
from pathaware.training.evaluation import evaluate, interval_over_tasks
from pathaware.training.features import BASELINES, FeatureBaseline
from pathaware.training.provenance import encode_values, evaluation_record, write_record
from pathaware.training.run_folder import Run
from pathaware_research.studies.photos.training import DATA, config, opened, train_on_sources

SETTINGS: list[tuple[int, int]] = [(5, 1), (5, 5), (10, 1), (10, 5), (20, 1), (20, 5)]
"""Ways and shots of the table."""
VALIDATION = (("miniimagenet", "val"), ("cifar-fs", "val"))
PENALTIES = (0.1, 1.0, 10.0, 100.0)
"""Values of C of logistic regression to choose from."""
TASKS = 600


def choose(results: Path, features: Path | None) -> None:
    """Choose C of logistic regression on validation classes: the best mean over data, ways and shots."""
    run = opened(features)
    rows = []
    for data, split in VALIDATION:
        for ways, shots in ((5, 1), (5, 5), (10, 1), (10, 5)):
            learner, problem = load_for(run, "cpu", ways, shots)
            there = dataclasses.replace(problem, data=data)
            found: dict[str, Any] = {"data": data, "split": split, "ways": ways, "shots": shots}
            for penalty in PENALTIES:
                baseline = FeatureBaseline(learner, "logistic", penalty=penalty)
                result = evaluate(baseline, there, split=split, tasks=200, queries="alone")
                found[f"{penalty:g}"] = with_interval(result.values[:, -1])
            rows.append(found)
            print(found, flush=True)
    means = {f"{c:g}": sum(row[f"{c:g}"]["mean"] for row in rows) / len(rows) for c in PENALTIES}
    chosen = float(max(means, key=lambda name: means[name]))
    write_record(
        results / "photos-logistic.json", {"tasks": 200, "rows": rows, "means": means, "chosen": chosen}
    )
    print(means, chosen)


def measure(results: Path, features: Path | None) -> None:
    """Accuracy on test classes by ways and shots, each photograph on its own, beside the baselines.

    All use the same features: of support photographs the mean over both views, of queries the plain view.
    """
    run, rows = opened(features), []
    chosen = json.loads((results / "photos-logistic.json").read_text(encoding="utf-8"))["chosen"]
    for data in DATA:
        for ways, shots in SETTINGS:
            learner, problem = load_for(run, "cpu", ways, shots)
            there = dataclasses.replace(problem, data=data)
            learners: dict[str, FewShotLearner] = {"photos": learner.eval()}
            learners |= {name: FeatureBaseline(learner, name) for name in BASELINES}
            learners["logistic-chosen"] = FeatureBaseline(learner, "logistic", penalty=chosen)
            found: dict[str, Any] = {"data": data, "ways": ways, "shots": shots}
            values = {}
            for name, each in learners.items():
                result = evaluate(each, there, tasks=TASKS, queries="alone")
                values[name] = result.values[:, -1]
                found[name] = {**result.summary(), "task_values": encode_values(values[name])}
            found["lead"] = {
                name: with_interval(values["photos"] - values[name]) for name in learners if name != "photos"
            }
            rows.append(found)
            print(
                data,
                ways,
                shots,
                {name: f"{100 * found[name]['accuracy']:.2f}" for name in learners},
                {name: f"{100 * v['mean']:.2f} ± {100 * v['ci95']:.2f}" for name, v in found["lead"].items()},
                flush=True,
            )
            # After every row, so that a stopped evaluation leaves what it has.
            content = evaluation_record(run, result)
            kept = ("config", "checkpoint_sha256", "tensors_sha256", "trained_with", "training_iterations")
            write_record(
                results / "photos.json",
                {**{key: content[key] for key in kept}, "penalty_chosen": chosen, "rows": rows},
            )


def measure_fixed(backbone: Path, runs: Path, results: Path, features: Path | None) -> None:
    """Meta-train for five classes of one and of five photographs only, and compare on the same test tasks."""
    run, rows = opened(features), []
    for ways, shots in ((5, 1), (5, 5)):
        settings = config(backbone, (ways, shots))
        out = runs / f"photos-{ways}way-{shots}shot"
        if not (out / CHECKPOINT).exists():
            train_on_sources(settings, out, features)
        special = opened(features, out)
        for data in DATA:
            values = {}
            for name, each in (("photos", run), ("for this size only", special)):
                learner, problem = load_for(each, "cpu", ways, shots)
                there = dataclasses.replace(problem, data=data)
                values[name] = evaluate(learner.eval(), there, tasks=TASKS, queries="alone").values[:, -1]
            difference = values["photos"] - values["for this size only"]
            found = {name: with_interval(each) for name, each in values.items()}
            rows.append(
                {"data": data, "ways": ways, "shots": shots, **found, "difference": with_interval(difference)}
            )
            print(rows[-1], flush=True)
    write_record(results / "photos-fixed.json", {"tasks": TASKS, "rows": rows, **digests(run)})


def with_interval(values: torch.Tensor) -> dict[str, float]:
    return {"mean": values.double().mean().item(), "ci95": interval_over_tasks(values.double())}


def digests(run: Run) -> dict[str, str]:
    return {"tensors_sha256": tensor_digest(run.learned()[0])}


def write_card(results: Path) -> None:
    """Write the accuracies of the record into the model's card, a line per data set, ways and shots."""
    path = SHIPPED / "photos" / "card.toml"
    names = {
        "miniimagenet": "miniImageNet",
        "cifar-fs": "CIFAR-FS (scaled up)",
        "grocery": "Grocery Store (of a kind not trained on)",
    }
    lines = []
    for row in json.loads((results / "photos.json").read_text(encoding="utf-8"))["rows"]:
        own, mean, logistic = (
            100 * row[k]["accuracy"] for k in ("photos", "nearest-mean", "logistic-chosen")
        )
        task = f"{names[row['data']]}, {row['ways']} classes, {row['shots']} per class"
        spread = 100 * row["photos"]["accuracy_ci95"]
        others = f"nearest class mean {mean:.1f}, logistic regression {logistic:.1f}"
        lines.append(f"{task}: {own:.1f} % ± {spread:.1f} ({others})")
    listed = (
        "accuracy = [\n" + "".join(f"    {json.dumps(line, ensure_ascii=False)},\n" for line in lines) + "]\n"
    )
    text = re.sub(
        r"accuracy = \[.*?\]\n", lambda _: listed, path.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    path.write_text(text, encoding="utf-8")
