"""What there is to learn, by name: tasks, network, loss and measure belong together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.losses import Loss
from pathaware.models import mlp
from pathaware.settings import at_least
from pathaware.tasks.episodes import TaskSource
from pathaware.tasks.sine import SineWaves


class Problem(Protocol):
    """A problem is a dataclass of its settings; the trainer knows it by these members only."""

    name: ClassVar[str]
    metric: ClassVar[Literal["mse", "accuracy"]]

    @property
    def loss(self) -> Loss: ...

    def model(self) -> nn.Module: ...

    def training_tasks(self) -> TaskSource: ...

    def evaluation_tasks(self, split: str) -> TaskSource: ...

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metric of each task, `[T]`, from outputs and targets `[T, N, …]`."""
        ...


@dataclass(frozen=True)
class Sine:
    """Few-shot regression of sine waves with a 1-40-40-1 ReLU network."""

    name: ClassVar[str] = "sine"
    metric: ClassVar[Literal["mse", "accuracy"]] = "mse"

    shots: int = 10
    queries: int = 10
    points: int = 1000

    def __post_init__(self) -> None:
        at_least(1, shots=self.shots, queries=self.queries)
        at_least(2, points=self.points)

    @property
    def loss(self) -> Loss:
        return F.mse_loss

    def model(self) -> nn.Module:
        return mlp(1, (40, 40), 1)

    def training_tasks(self) -> TaskSource:
        return SineWaves(self.shots, self.queries)

    def evaluation_tasks(self, split: str) -> TaskSource:
        """New waves, judged over the whole domain; the split only names their random stream."""
        return SineWaves(self.shots, self.points, grid=True)

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().flatten(1).mean(1)


PROBLEMS: dict[str, Callable[..., Problem]] = {Sine.name: Sine}
