"""What there is to learn, by name: tasks, network, loss and measure belong together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from pathaware.losses import Loss
from pathaware.tasks.episodes import TaskSource
from pathaware.training.classification import Classification
from pathaware.training.regression import Sine


class Problem(Protocol):
    """A problem is a dataclass of its settings; the trainer knows it by these members only."""

    name: ClassVar[str]
    metric: ClassVar[Literal["mse", "accuracy"]]
    training: ClassVar[Mapping[str, Any]]
    """Defaults of the training settings that suit this problem."""

    evaluation_tasks: ClassVar[int]
    """How many new tasks the paper judges on."""
    evaluation_batch: ClassVar[int]
    """How many of them run side by side."""

    @property
    def label(self) -> str:
        """A short name for folders and figures, such as `sine-k10`."""
        ...

    @property
    def loss(self) -> Loss: ...

    def inputs(self) -> dict[str, Any]:
        """What the network reads, in numbers and names: enough to use it where its data set is not."""
        ...

    def model(self, inputs: Mapping[str, Any] | None = None) -> nn.Module:
        """The network at its start, for inputs that a run has kept or those of the data set."""
        ...

    def tasks(self, split: str, device: torch.device | str, dtype: torch.dtype) -> TaskSource:
        """Where tasks of a split come from: `train`, `val` or `test`."""
        ...

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metric of each task, `[T]`, from outputs and targets `[T, N, …]`."""
        ...


PROBLEMS: dict[str, type[Problem]] = {Sine.name: Sine, Classification.name: Classification}
