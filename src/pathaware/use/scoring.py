"""How many labels are right, where pictures lie in folders that say what they show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from pathaware.errors import UsageError
from pathaware.use.predictions import Predictions


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
            f"--score: no picture in {source} lies in a folder named as a class ({predictions.classes[0]}, …)"
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
