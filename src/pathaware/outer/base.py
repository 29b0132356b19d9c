"""What an outer estimator is: how the loss at the path's end becomes a gradient of θ₀ and Φ."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from pathaware.few_shot import FewShotLearner
from pathaware.tasks.episodes import Episodes


class Outer(ABC):
    """Accumulates a meta-gradient in the `.grad` of the learner's parameters."""

    @abstractmethod
    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        """Add `weight` times the sum over these tasks of their meta-gradients; return their losses `[T]`.

        A meta-batch may come in several calls, each with some of its tasks and the same weight.
        """

    def at(self, progress: float, learner: FewShotLearner) -> bool:
        """Hear before each iteration what part of training is done, 0 to 1, for what changes with it.

        Numbers that change must live in tensors that are filled in place: an iteration may be replayed from a
        recording. True says that something else has changed, and a recording is void.
        """
        return False
