"""Learn a folder of class folders: measure accuracy by cross-validation, and save a classifier.

A saved classifier is a folder with everything that `predict`, `serve` and `export` need: the model it was
adapted from (`config.toml`, `checkpoint.safetensors`) and its own labelled images (`support.safetensors`).
"""

from __future__ import annotations

import json
import math
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.core.reading import MOST_TENSORS, read_file, read_json
from pathaware.core.seeding import generator
from pathaware.core.writing import (
    Lock,
    Locked,
    beside,
    draft_folder,
    make_folder,
    replace_file,
    replace_folder,
    restore_folder,
)
from pathaware.data.episodes import ENOUGH
from pathaware.data.pixels import ImageInput
from pathaware.data.store import counted
from pathaware.inference.calibration import CALIBRATION
from pathaware.inference.class_folders import LabelledFolder
from pathaware.inference.influence import ODDS
from pathaware.inference.predictions import Predictions, Score
from pathaware.inference.trained_model import (
    SUPPORT,
    TYPICAL,
    AdaptedClassifier,
    SupportSet,
    TrainedModel,
)
from pathaware.methods import get_method
from pathaware.models.backbones import IMAGENET
from pathaware.models.efficientnet_lite import CROP, NORMALISATION, VARIANTS
from pathaware.training.checksummed import write_checksummed
from pathaware.training.config import Config
from pathaware.training.run_files import METRICS, PROVENANCE
from pathaware.training.tables import Remark

HELD_OUT = 0.2
"""Part of the images of each class that is held out at a time to measure accuracy."""
LARGEST_PART = 0.5
"""Largest part that can be held out at a time: that of two folds."""
VALIDATION_SECONDS = 30.0
"""Seconds that cross-validation may take, if it does not end with its first fold."""

MEASURED = "learned.json"
"""The file of a classifier that says how its accuracy was measured, for people and for the web page."""


@dataclass(frozen=True)
class Learned:
    """A classifier of your own classes, and what was measured on held-out images.

    `classifier` is adapted to all images. `folds [images]` has the fold of each image: predictions of the
    images of a fold are by a classifier adapted to all others. It is -1 for images that were in none.
    `predictions` are of the images `test`; they and their `score` are None if no image was held out.
    """

    support: SupportSet
    names: tuple[str, ...]
    classifier: AdaptedClassifier
    folds: Tensor
    predictions: Predictions | None
    score: Score | None
    skipped: int = 0
    """Images that were to be held out, too, but adapting again would have taken too long."""

    @property
    def test(self) -> Tensor:
        """Indices `[N]` of the images that were held out, in order."""
        return (self.folds >= 0).nonzero()[:, 0]

    @property
    def fold_count(self) -> int:
        """The number of times that accuracy was measured, each on other images."""
        return int(self.folds.max()) + 1

    @property
    def wrong(self) -> list[int]:
        """Positions in `test` of the images that got a wrong label, the clearest mistakes first."""
        if self.predictions is None:
            return []
        odds, best = self._log_odds, self.predictions.probabilities.argmax(1)
        wrong = (best != self.support.labels[self.test]).nonzero()[:, 0].tolist()
        return sorted(wrong, key=lambda i: -odds[i])

    @property
    def suspicious(self) -> list[int]:
        """Those of `wrong` whose own label may be the wrong one, see `influence.suspicious_labels`."""
        return [i for i in self.wrong if self._log_odds[i] >= math.log(ODDS)]

    @property
    def _log_odds(self) -> list[float]:
        """How much more probable the given label of each image of `test` is than its own, as a logarithm."""
        assert self.predictions is not None
        values = self.predictions.probabilities.clamp(min=1e-300).log()
        own = values.gather(1, self.support.labels[self.test][:, None])[:, 0]
        odds: list[float] = (values.amax(1) - own).tolist()
        return odds

    @property
    def unmeasured(self) -> list[str]:
        """Classes without a held-out image, which the accuracy says nothing about."""
        held = set(self.support.labels[self.test].tolist())
        return [name for i, name in enumerate(self.support.classes) if i not in held]


def learn(
    model: TrainedModel,
    support: SupportSet,
    names: Sequence[str],
    test: Tensor | None = None,
    *,
    hold_out: float = HELD_OUT,
    seed: int = 0,
) -> Learned:
    """Measure accuracy by cross-validation, then adapt to all images.

    `names` are those of the images. A part `hold_out` of every class is held out at a time, until each image
    of a class that has two was held out once or `VALIDATION_SECONDS` is exceeded. `test` are the indices of
    images to measure on instead, all at once.
    """
    check_hold_out(hold_out)
    if test is None:
        folds = assign_folds(support.labels, hold_out, seed)
    else:
        folds = torch.full_like(support.labels, -1)
        folds[test] = 0
    missing = set(range(len(support.classes))) - set(support.labels[folds != 0].tolist())
    if missing:
        name = support.classes[min(missing)]
        raise UsageError(f"class {name} has no image to learn from; all of its images are test images")
    classes = len(support.classes)
    if model.memory is not None:  # of each image and its mirror image, so that none is computed twice
        model.memory.most = max(model.memory.most, 2 * len(support.labels))
        model.support_inputs(support.pixels)
    probabilities = torch.zeros(len(support.labels), classes, dtype=torch.float64)
    done, began = 0, time.monotonic()
    for done in range(1, int(folds.max()) + 2):
        held = folds == done - 1
        adapted = model.adapt(support.pixels[~held], support.labels[~held], classes)
        probabilities[held] = adapted.probabilities(support.pixels[held])
        if (time.monotonic() - began) * (done + 1) / done > VALIDATION_SECONDS:  # with one more
            break
    skipped = folds >= done
    folds = folds.masked_fill(skipped, -1)
    predictions = score = None
    if done:
        test = (folds >= 0).nonzero()[:, 0]
        predictions = Predictions([names[i] for i in test.tolist()], support.classes, probabilities[test])
        score = Score.of(predictions, [support.classes[i] for i in support.labels[test].tolist()])
    classifier = model.adapt(support.pixels, support.labels, classes)
    return Learned(support, tuple(names), classifier, folds, predictions, score, int(skipped.sum()))


def check_hold_out(share: float) -> None:
    """Refuse parts that are no folds: each image is held out once, so there are at least two folds."""
    if not 0 <= share <= LARGEST_PART:
        raise UsageError(
            f"must be 0 to {LARGEST_PART:g}, not {share:g}: every image is held out once, so there are at "
            "least two folds",
            field="hold_out",
        )


def without(support: SupportSet, test: Tensor) -> SupportSet:
    """The labelled images but those with these indices."""
    kept = torch.ones(len(support.labels), dtype=torch.bool)
    kept[test] = False
    return SupportSet(support.classes, support.pixels[kept], support.labels[kept])


def assign_folds(labels: Tensor, share: float, seed: int) -> Tensor:
    """The fold `[N]` of each image such that a fold has about this share of every class; -1 for none.

    The images of a class are dealt out at random, beginning with fold 0, which so has one of every class that
    has two images or more. There are at least two folds, and no more than the largest class has images.
    """
    random = generator(seed, "hold out")
    folds = torch.full_like(labels, -1)
    if not share:
        return folds
    count = max(2, round(min(1 / share, int(labels.bincount().max()))))
    for label in labels.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        if len(members) > 1:
            order = torch.randperm(len(members), generator=random)
            folds[members[order]] = torch.arange(len(members)) % count
    return folds


def duplicates_across(support: SupportSet, folds: Tensor) -> list[tuple[int, int]]:
    """Pairs (learned, held out) of images that are nearly equal, which makes an accuracy too good.

    With several folds a pair is there in both orders: each image was learned when the other was held out.
    """
    hashes = [difference_hash(image) for image in support.pixels.numpy()]
    test = (folds >= 0).nonzero()[:, 0].tolist()
    pairs = [(i, test[j]) for i, j in near_duplicates(hashes, [hashes[i] for i in test])]
    return [(i, j) for i, j in pairs if folds[i] != folds[j]]


def distinct_pairs(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pairs, each in the first of its orders only.

    >>> distinct_pairs([(0, 3), (0, 5), (3, 0)])
    [(0, 3), (0, 5)]
    """
    first = dict[frozenset[int], tuple[int, int]]()
    for pair in pairs:
        first.setdefault(frozenset(pair), pair)
    return list(first.values())


def conflicting_duplicates(support: SupportSet) -> list[tuple[int, int]]:
    """Pairs of images that are nearly equal but have different labels, of which one is wrong."""
    hashes = [difference_hash(image) for image in support.pixels.numpy()]
    labels = support.labels.tolist()
    return [(i, j) for i, j in near_duplicates(hashes, hashes) if i < j and labels[i] != labels[j]]


def notes_on(folder: LabelledFolder) -> list[str]:
    """Sentences about the folder that the user may not expect: what is left out and what is merged."""
    notes = []
    if folder.empty:
        notes.append(f"left out, because there are no images in it: {', '.join(_first(folder.empty))}")
    if folder.nested:
        classes = ", ".join(_first(folder.nested))
        notes.append(f"images in folders within a class folder belong to that class: {classes}")
    if conflicts := conflicting_duplicates(folder.support):
        first, second = (folder.names[i] for i in conflicts[0])
        more = f" (and {counted(len(conflicts) - 1, 'other pair')})" if conflicts[1:] else ""
        notes.append(
            f"{first} and {second}{more} are nearly equal but have different classes; one label may be wrong"
        )
    return notes


def _first(names: Sequence[str], most: int = 10) -> list[str]:
    return [*names[:most], *([f"and {len(names) - most:,} more"] if names[most:] else [])]


def test_images(folder: LabelledFolder) -> tuple[Tensor | None, list[str]]:
    """The images of the folder `test` (else `val`), if the folder is split so; and notes for the user."""
    if folder.splits is None:
        return None, []
    chosen = "test" if "test" in folder.splits else "val"
    test = torch.tensor([i for i, split in enumerate(folder.splits) if split == chosen])
    rest = ", ".join(sorted(set(folder.splits) - {chosen}))
    return test, [
        f"the folders {rest} and {chosen} hold the same classes: learned from {rest}, measured on {chosen}, "
        "then learned from all"
    ]


def training_advice(source: Path, folder: LabelledFolder) -> str:
    """One sentence: how to meta-train on these classes, or what is missing for it."""
    counts = folder.support.labels.bincount()
    least_classes, least_images = ENOUGH
    enough = int((counts >= least_images).sum())
    if enough < least_classes:
        yours = f"{enough} of yours have" if enough > 1 else f"{'one' if enough else 'none'} of yours has"
        return (
            f"to meta-train a model of your own takes {least_classes} classes with {least_images} images "
            f"each; {yours} that many"
        )
    smaller = len(counts) - enough
    leave = f"leave out the {counted(smaller, 'smaller class')}, then " if smaller else ""
    return (
        f"{enough} classes have {least_images} images or more, enough to meta-train a model on them: {leave}"
        f"pathaware data import mine --from {shlex.quote(str(source))} --proportions 0.6,0.2,0.2, which "
        "names the command to train with"
    )


def confusion(score: Score, classes: Sequence[str]) -> list[list[str]]:
    """Rows of the confusion matrix: true class, then how often it got each label; 0 is a dot."""
    rows = []
    for truth in classes:
        given = score.given.get(truth, Counter())
        rows.append([truth, *(str(given[label]) if given[label] else Remark("·") for label in classes)])
    return rows


FEATURE_HEAD: dict[str, Any] = {
    "name": "proto-pamela",
    "steps": 100,
    "rate": 0.08,
    "skip": None,
    "shrinkage": None,
    "centring": 0.9,
    "power": 0.5,
}
"""A head without anything learned: a hundred short steps from the class means.

Its settings were chosen on the training and validation sets of the study of `docs/photos.md`.
"""


def is_backbone(name: str) -> bool:
    """True for the name of a network, such as `timm:NAME`, rather than of a model or a folder."""
    return ":" in name or name in VARIANTS


def untrained_model(name: str, weights: Path | None, size: int | None, device: str = "auto") -> TrainedModel:
    """A backbone with the head `FEATURE_HEAD`, without any meta-training.

    It takes photographs of `size` × `size`, by default those that it was trained with or 224 × 224. They are
    normalised as ImageNet's, unless the backbone says otherwise, as networks of `VARIANTS` and timm do.
    """
    variant = VARIANTS.get(name)
    mean, std = NORMALISATION if variant else IMAGENET
    size = size or (variant.size if variant else 224)
    chosen = {
        "data": "photographs",
        "model_name": name,
        "adapt": "head",
        "weights": "" if weights is None else str(weights),
    }
    tables = {
        "problem": {"name": "classification", **chosen},
        "method": FEATURE_HEAD,
        "training": {"device": device},
    }
    config = Config.from_dict(tables)
    form = ImageInput(size, 3, False, mean, std, crop=CROP if variant else 0.0)
    place = config.training.torch_device
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        problem: Any = config.problem
        network = problem.model(form.to_dict(), load=True)
        learner = get_method(config.method).build(network, config.method_settings, config.problem.loss)
    return TrainedModel(config, learner.state_dict(), form.to_dict(), place)


def must_be_free(folder: Path, replace: bool) -> None:
    """Raise if a classifier cannot be saved in this folder; `replace` allows one that is there."""
    restore_folder(folder)
    if not folder.exists():
        return
    if not (folder / SUPPORT).is_file():
        raise UsageError(f"{folder} exists and is no classifier; name a new folder", field="out")
    if not replace:
        raise UsageError(
            f"is needed to replace the classifier {folder}, which exists; or name a new folder",
            field="replace",
        )


def save_classifier(learned: Learned, model: TrainedModel, folder: Path, *, replace: bool = False) -> None:
    """Write a folder that `TrainedModel.open` opens, with its classes; `replace` an earlier classifier."""
    must_be_free(folder, replace)
    folder = folder.resolve()  # a link stays a link
    try:
        make_folder(folder.parent)
        with draft_folder(folder.parent) as draft:
            _write_classifier(learned, model, draft)
            with Lock(beside(folder, "lock"), wait=60):
                must_be_free(folder, replace)  # another process may have been faster
                replace_folder(draft, folder)
    except Locked:
        raise UsageError(f"{folder} is being replaced by another process", field="out") from None
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror or error})", field="out") from None


def _write_classifier(learned: Learned, model: TrainedModel, draft: Path) -> None:
    model.write(draft)
    if (source := model.folder) is not None:
        for name in (CALIBRATION, TYPICAL, METRICS, PROVENANCE):
            if (source / name).exists():
                replace_file(draft / name, read_file(source / name, MOST_TENSORS), draft)
    tensors = {"pixels": learned.support.pixels, "labels": learned.support.labels}
    if model.memory is not None:  # so that `predict` need not compute them again
        tensors["features"] = model.memory(learned.support.pixels).cpu()
        if model.mirrors_support:
            tensors["mirrored"] = model.memory(learned.support.pixels.flip(-1)).cpu()
    about = {"classes": list(learned.support.classes), "names": learned.names}
    write_checksummed(draft / SUPPORT, tensors, about)
    if (score := learned.score) is not None:
        found = Measured(
            score.right, score.total, score.accuracy, score.interval, score.class_mean, learned.fold_count
        )
        replace_file(draft / MEASURED, json.dumps(asdict(found), indent=1) + "\n", draft)


@dataclass(frozen=True)
class Measured:
    """The accuracy of a classifier as its file has it."""

    right: int
    of: int
    accuracy: float | None = None
    interval: tuple[float, ...] = ()
    class_mean: float | None = None
    folds: int = 1


def measured_accuracy(folder: Path) -> Measured | None:
    """Read the accuracy that `save_classifier` wrote; None if it was not measured."""
    path = folder / MEASURED
    return read_json(path, Measured) if path.exists() else None


NEAR = 4
"""Largest number of differing bits of 64 at which two images count as near-duplicates."""


def difference_hash(pixels: NDArray[np.uint8]) -> int:
    """64 bits of an image `[C, H, W]`: whether each of 8 × 8 cells is darker than the one to its right."""
    grey = torch.from_numpy(np.ascontiguousarray(pixels)).float().mean(0)[None, None]
    cells = F.interpolate(grey, (8, 9), mode="area")[0, 0]
    bits = (cells[:, 1:] > cells[:, :-1]).flatten().tolist()
    return sum(1 << i for i, bit in enumerate(bits) if bit)


def near_duplicates(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of indices whose hashes differ in at most `NEAR` bits.

    Images without structure, whose hash is nearly empty, are left out: all of them would be duplicates.
    """
    rows = np.array(first, dtype=np.uint64)
    found = []
    for j, value in enumerate(second):
        if not NEAR < value.bit_count() < 64 - NEAR:
            continue
        differing = np.bitwise_count(rows ^ np.uint64(value)) if len(rows) else rows
        found += [(int(i), j) for i in np.flatnonzero(differing <= NEAR)]
    return found
