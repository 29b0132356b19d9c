"""Metrics: name, direction and format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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


MSE = Metric("mse", "mean squared error", lower_is_better=True)
ACCURACY = Metric("accuracy", "accuracy, %", lower_is_better=False, scale=100.0, digits=2)
METRICS = {metric.name: metric for metric in (MSE, ACCURACY)}
