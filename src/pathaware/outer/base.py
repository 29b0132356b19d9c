"""What an outer estimator is: how the loss at the path's end becomes a gradient of θ₀ and Φ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from pathaware.tasks.episodes import Episodes

if TYPE_CHECKING:
    from pathaware.learner import MetaLearner


class Outer(Protocol):
    """Accumulates a meta-gradient in the `.grad` of the learner's parameters."""

    def backward(self, learner: MetaLearner, episodes: Episodes, weight: float) -> Tensor:
        """Add `weight` times the sum over these tasks of their meta-gradients; return their losses `[T]`.

        A meta-batch may come in several calls, each with some of its tasks and the same weight.
        """
        ...
