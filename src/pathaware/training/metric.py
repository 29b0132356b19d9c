"""Metrics: name, direction and format; and how reliable the confidence of predictions is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Metric:
    """A number per task. `name` is its key in JSON; `title` heads a column or an axis.

    Values are written `scale` times as large, with `digits` decimals: accuracies in per cent.
    """

    name: str
    title: str
    lower_is_better: bool
    scale: float = 1.0
    digits: int = 4

    def best(self, values: Iterable[float]) -> float:
        return min(values) if self.lower_is_better else max(values)

    def worst(self, values: Tensor) -> Tensor:
        """The worst of the values of many tasks."""
        return values.max() if self.lower_is_better else values.min()

    @property
    def worst_key(self) -> str:
        """The key of the worst task in a summary: `mse_max`, `accuracy_min`."""
        return f"{self.name}_{'max' if self.lower_is_better else 'min'}"

    def improves(self, value: float, best: float | None) -> bool:
        """True if `value` is at least as good as the best so far."""
        return best is None or self.best((value, best)) == value

    def format(self, value: float) -> str:
        return f"{self.scale * value:.{self.digits}f}"

    def with_interval(self, value: float, half_width: float) -> str:
        """`75.31 ± 0.54`"""
        return f"{self.format(value)} ± {self.format(half_width)}"


def median(values: Tensor) -> float:
    """The median of all values; of an even number, the mean of the two in the middle.

    >>> median(torch.tensor([4.0, 1.0, 2.0, 3.0]))
    2.5
    """
    ranked = values.flatten().sort().values
    count = len(ranked)
    return ((ranked[(count - 1) // 2] + ranked[count // 2]) / 2).item()


MSE = Metric("mse", "mean squared error", lower_is_better=True)
ACCURACY = Metric("accuracy", "accuracy, %", lower_is_better=False, scale=100.0, digits=2)


def accuracies(outputs: Tensor, targets: Tensor) -> Tensor:
    """The accuracy of each task, `[T]`, from logits `[T, N, classes]` and classes `[T, N]`."""
    finite = outputs.isfinite().all(-1)  # NaN would be counted as the first class
    return ((outputs.argmax(-1) == targets) & finite).double().mean(1)


def squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error of each task, `[T]`, from values `[T, N, …]`."""
    return (outputs - targets).square().flatten(1).mean(1)


METRICS = {metric.name: metric for metric in (MSE, ACCURACY)}


@dataclass(frozen=True)
class Reliability:
    """How the confidence of predictions, their largest probability, compares with their accuracy.

    `bins` has the mean confidence, the accuracy and the share of the predictions in each bin of confidence
    that has any. `error` is the expected calibration error: the mean difference of confidence and accuracy.
    `risk_coverage` has pairs of coverage and risk: the error rate among the most confident predictions.
    """

    bins: list[tuple[float, float, float]]
    error: float
    risk_coverage: list[tuple[float, float]]


def reliability(outputs: Tensor, targets: Tensor, temperature: float = 1.0, bins: int = 15) -> Reliability:
    """Measure logits `[…, classes]`, divided by a temperature, with classes `targets […]`.

    >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])  # confidence 0.88
    >>> found = reliability(logits, torch.tensor([0, 0, 1, 1]))  # three of four are right
    >>> round(found.error, 2), found.risk_coverage[-1]
    (0.13, (1.0, 0.25))
    """
    flat, truth = outputs.flatten(0, -2).double(), targets.flatten()
    confidence, label = (flat / temperature).softmax(-1).max(-1)
    right = (label == truth).double()
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    rows = []
    for i in range(bins):
        inside = place == i
        if inside.any():
            sure, accuracy = confidence[inside].mean().item(), right[inside].mean().item()
            rows.append((sure, accuracy, inside.double().mean().item()))
    error = sum(share * abs(sure - accuracy) for sure, accuracy, share in rows)
    order = confidence.argsort(descending=True, stable=True)
    risk = 1 - right[order].cumsum(0) / torch.arange(1, len(right) + 1)
    points = [max(1, round(len(right) * i / 20)) for i in range(1, 21)]
    return Reliability(rows, error, [(i / 20, risk[n - 1].item()) for i, n in enumerate(points, 1)])
