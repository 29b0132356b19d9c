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
NONE = "none of these"
"""The label of an image that is too far from all classes."""
_RANKS = ("label", "runner-up", "third")


@dataclass(frozen=True)
class Reason:
    """The support images that count most for and against a prediction: pairs of index and influence."""

    positive: list[tuple[int, float]]
    negative: list[tuple[int, float]]


@dataclass(frozen=True)
class Predictions:
    """Predictions for `images` (their names): `probabilities [N, classes]`, in the order of `classes`.

    - `unknown`: which images are of none of the classes; None if that was not asked for.
    - `why`: reasons, one per image, about support images with the names `support`.
    - `copies`: where each image was copied to, if it was.
    """

    images: list[str]
    classes: tuple[str, ...]
    probabilities: Tensor
    unknown: list[bool] | None = None
    why: list[Reason] | None = None
    support: tuple[str, ...] = ()
    copies: list[str] | None = None

    def __post_init__(self) -> None:
        if self.unknown is not None and NONE in self.classes:
            raise UsageError(f"a class is called {NONE!r}; rename it", field="unknown")

    @property
    def labels(self) -> list[str]:
        """The most probable class of each image, or `NONE`."""
        return [self.label(row) for row in range(len(self.images))]

    def label(self, row: int) -> str:
        unknown = self.unknown is not None and self.unknown[row]
        return NONE if unknown else self.classes[int(self.probabilities[row].argmax())]

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
            (_, probability), *others = self.ranked(row, top)
            line = [image, self.label(row), f"{probability:.3f}"]
            line += [f"{name} ({p:.3f})" for name, p in others] + self._reason_cells(row)
            lines.append([printable(part) for part in line])
        header = ["picture", "label", "probability", *ranks, *(["for", "against"] if self.why else [])]
        return Table.of("", header, lines)

    def _reason_cells(self, row: int) -> list[str]:
        """The support images that count most for and against a prediction, as two cells of a table."""
        if self.why is None:
            return []
        sides = self.why[row].positive[:1], self.why[row].negative[:1]
        return [", ".join(f"{self.support[i]} ({value:+.3g})" for i, value in side) for side in sides]

    def csv(self) -> str:
        """Format as csv: a line per image, with a column per class.

        The column of a class that is called as another column is has ` (class)` after its name.
        """
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        first, last = ["picture", "label", "probability"], ["for", "against"] if self.why else []
        last += [] if self.copies is None else ["copy"]
        columns = []
        for name in self.classes:
            column = f"{name} (class)" if name in (*first, *last) else name
            while column != name and column in self.classes:
                column += " (class)"
            columns.append(column)
        writer.writerow([*first, *columns, *last])
        for i, (image, row) in enumerate(zip(self.images, self.probabilities.tolist(), strict=True)):
            numbers = (f"{p:.{DIGITS}f}" for p in (max(row), *row))
            copy = [] if self.copies is None else [self.copies[i]]
            writer.writerow([image, self.label(i), *numbers, *self._reason_cells(i), *copy])
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
            entry: dict[str, Any] = {"picture": image, "label": label, "probabilities": probabilities}
            if self.unknown is not None:
                entry["unknown"] = self.unknown[row]
            if self.copies is not None:
                entry["copy"] = self.copies[row]
            if self.why is not None:
                reason = self.why[row]
                entry["for"], entry["against"] = (
                    [{"picture": self.support[i], "influence": round(v, DIGITS)} for i, v in side]
                    for side in (reason.positive, reason.negative)
                )
            rows.append(entry)
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

    @property
    def class_mean(self) -> float:
        """The mean over true classes of the accuracy on each, which large classes do not dominate."""
        return sum(labels[truth] / labels.total() for truth, labels in self.given.items()) / len(self.given)

    @property
    def unequal(self) -> bool:
        """Return True if the largest true class has at least twice as many images as the smallest."""
        totals = [labels.total() for labels in self.given.values()]
        return max(totals) >= 2 * min(totals)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy (Wilson, 1927), which is right for few images, too."""
        n, z2 = self.total, 1.96**2
        middle = (self.right + z2 / 2) / (n + z2)
        half = (z2 * (self.accuracy * (1 - self.accuracy) / n + z2 / (4 * n**2))) ** 0.5 / (1 + z2 / n)
        return max(0.0, middle - half), min(1.0, middle + half)

    def lines(self) -> list[str]:
        """Return a line with the accuracy, then one per class with its confusions."""
        left = f"; {self.unknown} in no class folder are not counted" if self.unknown else ""
        lines = [f"accuracy {self.accuracy:.4f}, {self.right} of {self.total} right{left}"]
        for truth, labels in self.given.items():
            wrong = [f"{count} as {label}" for label, count in labels.most_common() if label != truth]
            lines.append("; ".join([f"{truth}: {labels[truth]} of {labels.total()} right", *wrong]))
        return lines
