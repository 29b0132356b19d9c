"""What a rule may look at while tasks adapt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from pathaware.path import Order

if TYPE_CHECKING:
    from pathaware.learner import MetaLearner


@dataclass(frozen=True)
class Context:
    """T tasks being adapted: their examples, and the network at any point `[T, D]` of theirs.

    `query_x` are the inputs that are to be answered, where they are known already; a rule that looks at them
    is transductive. `order` says whether gradients must be differentiable.
    """

    learner: MetaLearner
    support_x: Tensor
    support_y: Tensor
    query_x: Tensor | None = None
    order: Order = "none"

    def __len__(self) -> int:
        return len(self.support_x)

    def predict(self, point: Tensor, x: Tensor) -> Tensor:
        """Outputs of the network for inputs `[T, N, …]`."""
        return self.learner.predict(point, x)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each task: `[T]`."""
        return self.learner.execution.losses(outputs, targets)

    def gradient(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """The support loss `[T]` and its gradient `[T, D]`, differentiable where the order is second."""
        create_graph = self.order == "second"
        return self.learner.gradient(point, self.support_x, self.support_y, create_graph=create_graph)
