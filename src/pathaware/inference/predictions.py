"""Predicted labels as a table, csv or JSON, and their accuracy where true labels are known."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from pathaware.core.errors import UsageError, printable
from pathaware.training.tables import Table

DIGITS = 6
_RANKS = ("label", "runner-up", "third")


@dataclass(frozen=True)
class Predictions:
    """Predictions for `images` (their names): `probabilities [N, classes]`, in the order of `classes`."""

    images: list[str]
    classes: tuple[str, ...]
    probabilities: Tensor

    @property
    def labels(self) -> list[str]:
        return [self.classes[i] for i in self.probabilities.argmax(1).tolist()]

    def ranked(self, row: int, top: int) -> list[tuple[str, float]]:
        """Return the `top` most probable classes of an image, the best first."""
        values, indices = self.probabilities[row].topk(min(top, len(self.classes)))
        return [(self.classes[i], p) for i, p in zip(indices.tolist(), values.tolist(), strict=True)]

    def table(self, top: int = 2) -> Table:
        """Tabulate image, label and probability, then the classes next in rank."""
        top = min(top, len(self.classes))
        ranks = [_RANKS[i] if i < len(_RANKS) else f"{i + 1}th" for i in range(1, top)]
        lines = []
        for row, image in enumerate(self.images):
            (label, probability), *others = self.ranked(row, top)
            line = [image, label, f"{probability:.3f}", *(f"{name} ({p:.3f})" for name, p in others)]
            lines.append([printable(part) for part in line])
        return Table.of("", ["picture", "label", "probability", *ranks], lines)

    def csv(self) -> str:
        """Format as csv: a line per image, with a column per class."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["picture", "label", "probability", *self.classes])
        for image, label, row in zip(self.images, self.labels, self.probabilities.tolist(), strict=True):
            writer.writerow([image, label, *(f"{p:.{DIGITS}f}" for p in (max(row), *row))])
        return file.getvalue()

    def json(self, top: int | None = None) -> str:
        """Format as a JSON list with an object per image; with `top`, only the best classes in order."""
        rows: list[dict[str, Any]] = []
        for row, (image, label) in enumerate(zip(self.images, self.labels, strict=True)):
            if top is None:
                chosen = list(zip(self.classes, self.probabilities[row].tolist(), strict=True))
            else:
                chosen = self.ranked(row, top)
            probabilities = {name: round(p, DIGITS) for name, p in chosen}
            rows.append({"picture": image, "label": label, "probabilities": probabilities})
        return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def true_labels(source: Path, predictions: Predictions) -> list[str | None]:
    """Return the true label of each image: the nearest parent folder named after a class, or None."""
    truths: list[str | None] = []
    for image in predictions.images:
        member = image.removeprefix(f"{source}:")  # of an archive
        path = Path(member) if member != image else Path(image).absolute()
        folders = reversed(path.parent.parts)
        truths.append(next((f for f in folders if f in predictions.classes), None))
    if not any(truths):
        raise UsageError(
            f"no picture in {source} lies in a folder named after a class ({predictions.classes[0]}, …)",
            field="score",
        )
    return truths


@dataclass(frozen=True)
class Score:
    """A confusion count: how often each true class was given each label."""

    given: dict[str, Counter[str]]
    unknown: int
    """Images without a true label, which are not counted."""

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
        """Return a line with the accuracy, then one per class with its confusions."""
        left = f"; {self.unknown} in no class folder are not counted" if self.unknown else ""
        lines = [f"accuracy {self.accuracy:.4f}, {self.right} of {self.total} right{left}"]
        for truth, labels in self.given.items():
            wrong = [f"{count} as {label}" for label, count in labels.most_common() if label != truth]
            lines.append("; ".join([f"{truth}: {labels[truth]} of {labels.total()} right", *wrong]))
        return lines
