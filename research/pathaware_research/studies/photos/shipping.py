"""Put the trained head into the package: its checkpoint, its calibration and its settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.data.pixels import ImageInput, TypicalImages
from pathaware.inference.calibration import Calibration, fit_cell
from pathaware.inference.learning import untrained_model
from pathaware.inference.open_set import ClassMeans, OpenTask
from pathaware.inference.trained_model import SHIPPED
from pathaware.methods.proto_pamela import ProtoPamela
from pathaware.training.checksummed import CHECKPOINT, write_checksummed
from pathaware.training.run_files import CONFIG
from pathaware_research.studies.photos.heads import new_head
from pathaware_research.studies.photos.tasks import TRAINING, VALIDATION, FeatureSet, load, tasks

NETWORK = "efficientnet-lite0"
SIZES = [(ways, shots) for ways in (2, 5, 20) for shots in (1, 5, 10)]
"""Ways and shots that are calibrated."""
PHOTOGRAPHS = {"plants": 3, "scenes": 30, "grocery": 3, "pets": 50}
"""Images per class of these sets tell what photographs look like. The others have drawings or cut-outs."""


def ship(images: Path, features: Path) -> None:
    """Write the run folder of `photos`, without the weights of the frozen network.

    Temperatures and thresholds come from the training and the validation sets.
    """
    folder = SHIPPED / "photos"
    model = untrained_model(NETWORK, None, None, "cpu")
    form = dataclasses.replace(model.image_input, mirror=True)
    state = {name: value for name, value in model._learned.items() if name.startswith("head.")}
    inputs = {**form.to_dict(), "typical": typical(images, form).to_dict()}
    about = {"iteration": 0, "config": model.config.to_dict(), "inputs": inputs, "frozen_weights": NETWORK}
    (folder / CONFIG).write_text(model.config.to_toml(), encoding="utf-8")
    write_checksummed(folder / CHECKPOINT, state, about)
    calibrate(new_head(), load(features, TRAINING + VALIDATION)).write(folder)


def typical(images: Path, form: ImageInput) -> TypicalImages:
    """Statistics of photographs, from some of every class."""
    chosen = []
    for name, each in PHOTOGRAPHS.items():
        for folder in sorted((images / name).iterdir()):
            chosen += sorted(folder.iterdir())[:each]
    return TypicalImages.of(form.stack(chosen))


def calibrate(head: ProtoPamela, sets: Sequence[FeatureSet]) -> Calibration:
    """Temperatures and thresholds from tasks of these sets, each as often as the others."""
    cells = []
    for ways, shots in SIZES:
        found: list[OpenTask] = []
        for each in sets:
            with suppress(UsageError):  # of a set with too few classes or images
                found += open_tasks(head, each, ways, shots, count=200 // ways, seed=1)
        cells.append(fit_cell(ways, shots, found))
    return Calibration(tuple(cells), ", ".join(each.name for each in sets))


@torch.no_grad()
def open_tasks(
    head: ProtoPamela, found: FeatureSet, ways: int, shots: int, *, count: int, seed: int, queries: int = 5
) -> list[OpenTask]:
    """Logits and distances of the queries of tasks, and of foreign queries, as `open_set` defines them."""
    head.outputs, made = ways, []
    for task, foreign in tasks(found, ways, shots, count, seed=seed, queries=queries):
        fitted = head.fit(task.support_x, task.support_y)
        logits, away = head.predict(fitted, task.query_x), head.predict(fitted, foreign)
        for i in range(len(logits)):
            means = ClassMeans.of(unit(task.support_x[i]), task.support_y[i])
            near, far = (means.distances(unit(x[i])) for x in (task.query_x, foreign))
            made.append(OpenTask(logits[i], task.query_y[i], near, means.spreads, away[i], far))
    return made


def unit(features: Tensor) -> Tensor:
    return F.normalize(features, dim=-1)
