"""Labels for pictures, in the forms that people and programs read."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.training.tables import Table

DIGITS = 6
_PLACES = ("label", "runner-up", "third")


@dataclass(frozen=True)
class Predictions:
    """What `pictures` show: `probabilities [N, classes]`, in the order of `classes`."""

    pictures: list[str]
    classes: tuple[str, ...]
    probabilities: Tensor

    @property
    def labels(self) -> list[str]:
        return [self.classes[i] for i in self.probabilities.argmax(1).tolist()]

    def ranked(self, row: int, top: int) -> list[tuple[str, float]]:
        """The most probable classes of a picture, the best first."""
        best = self.probabilities[row].topk(min(top, len(self.classes)))
        return [
            (self.classes[i], p) for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def table(self, top: int = 2) -> Table:
        """Picture, label and its probability, then the next in rank."""
        top = min(top, len(self.classes))
        places = [_PLACES[i] if i < len(_PLACES) else f"{i + 1}th" for i in range(1, top)]
        lines = []
        for row, picture in enumerate(self.pictures):
            (label, probability), *others = self.ranked(row, top)
            line = [picture, label, f"{probability:.3f}", *(f"{name} ({p:.3f})" for name, p in others)]
            lines.append([_shown(part) for part in line])
        return Table.of("", ["picture", "label", "probability", *places], lines)

    def csv(self) -> str:
        """A line for each picture, with a column for every class."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["picture", "label", "probability", *self.classes])
        for picture, label, row in zip(self.pictures, self.labels, self.probabilities.tolist(), strict=True):
            writer.writerow([picture, label, *(f"{p:.{DIGITS}f}" for p in (max(row), *row))])
        return file.getvalue()

    def json(self, top: int | None = None) -> str:
        """A list with an object for each picture; with `top`, only so many classes, the best first."""
        found: list[dict[str, Any]] = []
        for row, (picture, label) in enumerate(zip(self.pictures, self.labels, strict=True)):
            if top is None:
                chosen = list(zip(self.classes, self.probabilities[row].tolist(), strict=True))
            else:
                chosen = self.ranked(row, top)
            probabilities = {name: round(p, DIGITS) for name, p in chosen}
            found.append({"picture": picture, "label": label, "probabilities": probabilities})
        return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _shown(name: str) -> str:
    """Without what a terminal would obey: names come from strangers."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


# How many labels are right, where pictures lie in folders that say what they show.


def true_labels(source: Path, predictions: Predictions) -> list[str | None]:
    """Of each picture the nearest folder above it that is called as a class; None where there is none."""
    truths: list[str | None] = []
    for picture in predictions.pictures:
        inside = picture.removeprefix(f"{source}:")  # a member of an archive
        path = Path(inside) if inside != picture else Path(picture).absolute()
        folders = reversed(path.parent.parts)
        truths.append(next((f for f in folders if f in predictions.classes), None))
    if not any(truths):
        raise UsageError(
            f"no picture in {source} lies in a folder named as a class ({predictions.classes[0]}, …)",
            field="score",
        )
    return truths


@dataclass(frozen=True)
class Score:
    """Of every class that was met: how often it was given each label."""

    given: dict[str, Counter[str]]
    unknown: int
    """Pictures whose class is not known; they do not count."""

    @classmethod
    def of(cls, predictions: Predictions, truths: list[str | None]) -> Score:
        given: dict[str, Counter[str]] = {}
        for truth, label in zip(truths, predictions.labels, strict=True):
            if truth is not None:
                given.setdefault(truth, Counter())[label] += 1
        return cls(given, truths.count(None))

    @property
    def accuracy(self) -> float:
        return self.right / self.total

    @property
    def right(self) -> int:
        return sum(labels[truth] for truth, labels in self.given.items())

    @property
    def total(self) -> int:
        return sum(labels.total() for labels in self.given.values())

    def lines(self) -> list[str]:
        """The accuracy, then each class with what it was taken for."""
        left = f"; {self.unknown} in no class folder are not counted" if self.unknown else ""
        found = [f"accuracy {self.accuracy:.4f}, {self.right} of {self.total} right{left}"]
        for truth, labels in self.given.items():
            wrong = [f"{count} as {label}" for label, count in labels.most_common() if label != truth]
            found.append("; ".join([f"{truth}: {labels[truth]} of {labels.total()} right", *wrong]))
        return found
