"""Few-shot regression of sine waves, as a problem to train on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.losses import Loss
from pathaware.models import mlp
from pathaware.settings import at_least
from pathaware.tasks.episodes import TaskSource
from pathaware.tasks.sine import SineWaves


@dataclass(frozen=True)
class Sine:
    """`shots` points of a wave to adapt on, `queries` for the meta-loss, `points` to be judged on."""

    name: ClassVar[str] = "sine"
    metric: ClassVar[Literal["mse", "accuracy"]] = "mse"
    evaluation_tasks: ClassVar[int] = 1000
    evaluation_batch: ClassVar[int] = 100
    training: ClassVar[Mapping[str, Any]] = {
        "iterations": 40_000,
        "tasks": 25,
        "rate": 2e-3,
        "clip": 1.0,
        "device": "cpu",
        "threads": 1,  # the tensors are so small that a second thread only gets in the way
    }

    shots: int = 10
    queries: int = 10
    points: int = 1000

    def __post_init__(self) -> None:
        at_least(1, shots=self.shots, queries=self.queries)
        at_least(2, points=self.points)

    @property
    def label(self) -> str:
        return f"sine-k{self.shots}"

    @property
    def loss(self) -> Loss:
        return F.mse_loss

    def inputs(self) -> dict[str, Any]:
        return {"features": 1}

    def model(self, inputs: Mapping[str, Any] | None = None) -> nn.Module:
        return mlp(1, (40, 40), 1)

    def tasks(self, split: str, device: torch.device | str, dtype: torch.dtype) -> TaskSource:
        """There are no fixed waves to split: those of validation and test are new, and judged all over."""
        if split == "train":
            return SineWaves(self.shots, self.queries, device=device, dtype=dtype)
        return SineWaves(self.shots, self.points, grid=True, device=device, dtype=dtype)

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().flatten(1).mean(1)
