"""Temperatures and thresholds of `photos`, and how well they hold on classes they were not fitted to."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from pathaware.data.catalogue import open_store
from pathaware.data.store import ImageStore
from pathaware.inference.calibration import Calibration, fit_cell
from pathaware.inference.open_set import area, open_tasks, scores
from pathaware.inference.trained_model import SHIPPED, TrainedModel, find_run
from pathaware.training.metric import reliability
from pathaware.training.provenance import write_record
from pathaware.training.run_folder import Run
from pathaware_research.studies.photos.accuracy import TASKS, digests, with_interval
from pathaware_research.studies.photos.training import DATA, use_features

SIZES = [(ways, shots) for ways in (2, 5, 10) for shots in (1, 5, 20)]
"""Ways and shots that are calibrated."""


def parts_of_test(store: ImageStore, parity: int) -> ImageStore:
    """The test classes of a store in two parts: every other one is in `val`, to calibrate on, the others in
    `test`, to measure on."""
    classes, test = [], 0
    for span in store.manifest.classes:
        split = "train"
        if span.split == "test":
            split = "val" if test % 2 == parity else "test"
            test += 1
        classes.append(dataclasses.replace(span, split=split))  # type: ignore[arg-type]
    return ImageStore(dataclasses.replace(store.manifest, classes=tuple(classes)), store.images, store.folder)


def calibrate(results: Path, features: Path | None) -> None:
    """Fit temperatures and thresholds on the test classes of miniImageNet, which no part of the model has
    seen. They are measured on classes that they were not fitted to: each half of the test classes with those
    of the other half, and the other data sets with all of them."""
    torch.set_num_threads(1)
    model, run = TrainedModel.open("photos", "cpu"), Run.open(find_run("photos"))
    own, *others = (open_store(name) for name in DATA)
    halves = [parts_of_test(own, parity) for parity in (0, 1)]
    stores = (own, *others, *halves)
    use_features(features, model.learner(5).model, model.image_input, stores, ("val", "test"))
    measured = [(5, 1), (5, 5), (5, 20)]
    by_half = [fit(model, store, "val", measured) for store in halves]
    shipped = fit(model, own, "test", SIZES)
    shipped.write(SHIPPED / "photos")
    rows = []
    for name, tests in (
        ("miniimagenet", list(zip(halves, by_half, strict=True))),
        *((store.name, [(store, shipped)]) for store in others),
    ):
        for ways, shots in measured:
            found = measure_confidence(model, tests, ways, shots)
            rows.append({"data": name, "ways": ways, "shots": shots, **found})
            print(name, ways, shots, found, flush=True)
    write_record(results / "photos-calibration.json", {"tasks": TASKS, "rows": rows, **digests(run)})


def fit(model: TrainedModel, store: ImageStore, split: str, sizes: list[tuple[int, int]]) -> Calibration:
    """Temperatures and thresholds from the classes of a split."""
    cells = []
    for ways, shots in sizes:
        size: dict[str, Any] = {"ways": ways, "shots": shots, "queries": 5, "tasks": 500 // ways, "seed": 0}
        found = list(open_tasks(model, split=split, foreign=False, store=store, **size))
        cells.append(fit_cell(ways, shots, found))
    return Calibration(tuple(cells), "test classes of miniImageNet")


def measure_confidence(
    model: TrainedModel, tests: list[tuple[ImageStore, Calibration]], ways: int, shots: int
) -> dict[str, Any]:
    """Calibration error before and after, and the shares refused as unknown, over the tests of all stores."""
    size: dict[str, Any] = {"ways": ways, "shots": shots, "queries": 5, "tasks": TASKS // len(tests)}
    before, after, truths, areas, temperatures = [], [], [], [], []
    refused: dict[float, list[torch.Tensor]] = {}
    for store, fitted in tests:
        found = list(open_tasks(model, split="test", store=store, seed=1, **size))
        logits = torch.stack([task.logits for task in found])
        temperatures.append(fitted.temperature(ways, shots))
        before.append(logits)
        after.append(logits / temperatures[-1])
        truths.append(torch.stack([task.labels for task in found]))
        weight = fitted.spread_weight(ways, shots)
        known, foreign = (scores(found, weight, foreign=each)["distance"] for each in (False, True))
        areas.append(area(known, foreign))
        for share in (0.01, 0.05, 0.1):
            limit = fitted.threshold(share, ways, shots)
            both = torch.stack([(each > limit).double().mean(1) for each in (known, foreign)])
            refused.setdefault(share, []).append(both)
    truth = torch.cat(truths)
    shares = {share: torch.cat(parts, dim=1) for share, parts in refused.items()}
    return {
        "accuracy": with_interval((torch.cat(before).argmax(-1) == truth).double().mean(1)),
        "temperature": sum(temperatures) / len(temperatures),
        "calibration_error": reliability(torch.cat(before), truth).error,
        "calibrated_error": reliability(torch.cat(after), truth).error,
        "auroc": sum(areas) / len(areas),
        "refused": [
            {"asked": share, "known": with_interval(both[0]), "foreign": with_interval(both[1])}
            for share, both in shares.items()
        ],
    }
