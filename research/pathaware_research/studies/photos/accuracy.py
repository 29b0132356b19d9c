"""Accuracy and confidence of heads on the validation sets, and of the shipped one on the test sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.inference.calibration import Calibration
from pathaware.inference.open_set import area, scores
from pathaware.inference.trained_model import TrainedModel
from pathaware.methods.proto_pamela import ProtoPamela
from pathaware.training.evaluation import interval_over_tasks
from pathaware.training.provenance import encode_values, write_record
from pathaware_research.studies.photos.heads import (
    Predict,
    logistic,
    nearest_mean,
    new_head,
    train,
    with_head,
)
from pathaware_research.studies.photos.shipping import open_tasks
from pathaware_research.studies.photos.tasks import TEST, TRAINING, VALIDATION, FeatureSet, load, tasks

SIZES = [(2, 1), (2, 5), (5, 1), (5, 5), (20, 1), (20, 5)]
"""Ways and shots on the validation sets; sets that have fewer classes or images leave some out."""
TEST_SIZES = [(5, 1), (5, 5), (5, 10)]
TASKS, VALIDATION_TASKS, OPEN_TASKS = 600, 40, 200
ASKED = (0.05, 0.1)
"""Shares of known images that may be called unknown."""


FIRST = (20, 25, 40, 102)
"""Numbers of classes of flowers, of which the first are taken, as their folders are sorted."""


@torch.no_grad()
def scored(predict: Predict, batches: Sequence[tuple[Episodes, Tensor]]) -> tuple[Tensor, Tensor]:
    """Accuracy and mean confidence of each task."""
    right, sure = [], []
    for task, _ in batches:
        probabilities = predict(task).double().softmax(-1)
        right.append((probabilities.argmax(-1) == task.query_y).double().mean(1))
        sure.append(probabilities.amax(-1).mean(1))
    return torch.cat(right), torch.cat(sure)


def by_size(
    sets: Sequence[FeatureSet], sizes: Sequence[tuple[int, int]], count: int, seed: int
) -> list[tuple[str, int, int, list[tuple[Episodes, Tensor]]]]:
    """The tasks of each set and size that the set is large enough for."""
    found = []
    for each in sets:
        for ways, shots in sizes:
            try:
                found.append((each.name, ways, shots, list(tasks(each, ways, shots, count, seed=seed))))
            except UsageError:
                continue
    return found


def with_interval(values: Tensor) -> dict[str, float]:
    return {"mean": values.mean().item(), "ci95": interval_over_tasks(values)}


def shown(row: Mapping[str, Any], predictors: Mapping[str, Predict]) -> str:
    """A line for each row of a record: accuracy in %, and confidence minus accuracy."""
    parts = []
    for title in predictors:
        accuracy, confidence = row[title]["accuracy"]["mean"], row[title]["confidence"]
        parts.append(f"{title} {100 * accuracy:.2f} {100 * (confidence - accuracy):+.1f}")
    return ", ".join(parts)


def choose(features: Path, results: Path) -> None:
    """Compare heads on tasks of the validation sets."""
    predictors: dict[str, Predict] = {
        "nearest mean": nearest_mean,
        "logistic, C = 10": logistic(10.0),
        "logistic, C = 100": logistic(100.0),
        "class means": with_head(new_head(steps=0)),
        "20 steps": with_head(new_head(steps=20)),
        "100 steps": with_head(new_head()),
        "20 learned steps": with_head(train(load(features, TRAINING), steps=20, skip=2)),
    }
    rows = []
    for name, ways, shots, batches in by_size(load(features, VALIDATION), SIZES, VALIDATION_TASKS, seed=7):
        row: dict[str, Any] = {"data": name, "ways": ways, "shots": shots}
        for title, predict in predictors.items():
            right, sure = scored(predict, batches)
            row[title] = {"accuracy": with_interval(right), "confidence": sure.mean().item()}
        rows.append(row)
        print(
            name, ways, shots, {t: f"{100 * row[t]['accuracy']['mean']:.2f}" for t in predictors}, flush=True
        )
    write_record(results / "photos-choice.json", {"tasks": VALIDATION_TASKS, "rows": rows})


def shipped_head() -> tuple[ProtoPamela, Calibration]:
    """The head and the calibration of the model in the package."""
    model = TrainedModel.open("photos", "cpu")
    assert model.calibration is not None
    head: Any = model.learner(5).head
    return head, model.calibration


def calibrated(predict: Predict, calibration: Calibration) -> Predict:
    """Predictions with the temperature for the size of the task."""

    def divided(task: Episodes) -> Tensor:
        ways = int(task.support_y.max()) + 1
        return predict(task) / calibration.temperature(ways, task.support_y.shape[1] / ways)

    return divided


def unknown(
    head: ProtoPamela, calibration: Calibration, found: FeatureSet, ways: int, shots: int
) -> dict[str, Any]:
    """The shares of known and of foreign images that `--unknown` refuses, by the share it is given.

    Foreign images are of other classes of the same set, if it has enough.
    """
    made = open_tasks(head, found, ways, shots, count=OPEN_TASKS, seed=2)
    foreign = made[0].foreign_logits.numel() > 0
    weight = calibration.spread_weight(ways, shots)
    values = {"known": scores(made, weight)["distance"]}
    if foreign:
        values["foreign"] = scores(made, weight, foreign=True)["distance"]
    row: dict[str, Any] = {"auroc": area(values["known"], values["foreign"]) if foreign else None}
    for share in ASKED:
        limit = calibration.threshold(share, ways, shots)
        row[f"{share:g}"] = {
            kind: with_interval((each > limit).double().mean(1)) for kind, each in values.items()
        }
    return row


def measure(features: Path, results: Path) -> None:
    """The shipped head on tasks of the test sets, beside simple classifiers of the same features."""
    head, calibration = shipped_head()
    predictors: Mapping[str, Predict] = {
        "photos": calibrated(with_head(head), calibration),
        "nearest mean": nearest_mean,
        "logistic, C = 10": logistic(10.0),
    }
    rows, sets = [], load(features, TEST)
    for name, ways, shots, batches in by_size(sets, TEST_SIZES, TASKS, seed=0):
        row: dict[str, Any] = {"data": name, "ways": ways, "shots": shots}
        values = {}
        for title, predict in predictors.items():
            values[title], sure = scored(predict, batches)
            row[title] = {
                "accuracy": with_interval(values[title]),
                "confidence": sure.mean().item(),
                "task_values": encode_values(values[title]),
            }
        row["unknown"] = unknown(head, calibration, next(s for s in sets if s.name == name), ways, shots)
        row["lead"] = {t: with_interval(values["photos"] - values[t]) for t in list(predictors)[1:]}
        rows.append(row)
        print(
            name, ways, shots, {t: f"{100 * row[t]['accuracy']['mean']:.2f}" for t in predictors}, flush=True
        )
        write_record(results / "photos.json", {"tasks": TASKS, "rows": rows})


def compare_drawn(features: Path, results: Path) -> None:
    """How far accuracy depends on the classes and photographs that tasks are drawn from."""
    head, calibration = shipped_head()
    predictors: Mapping[str, Predict] = {
        "photos": calibrated(with_head(head), calibration),
        "logistic, C = 10": logistic(10.0),
    }
    (flowers,) = load(features, ("flowers",))
    sets = [flowers.of_classes(torch.arange(classes)) for classes in FIRST]
    rows = []
    for each in sets + load(features, ("textures", "textures-first", "waste", "waste-first")):
        for name, ways, shots, batches in by_size([each], TEST_SIZES[:2], OPEN_TASKS, seed=0):
            row: dict[str, Any] = {"data": name, "classes": each.classes, "ways": ways, "shots": shots}
            for title, predict in predictors.items():
                right, sure = scored(predict, batches)
                row[title] = {"accuracy": with_interval(right), "confidence": sure.mean().item()}
            rows.append(row)
            print(name, each.classes, shots, shown(row, predictors), flush=True)
    write_record(results / "photos-drawn.json", {"tasks": OPEN_TASKS, "rows": rows})
