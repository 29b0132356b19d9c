"""What an update rule is: given the path so far and the gradient here, where is the next point?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from pathaware.errors import UsageError
from pathaware.layout import Layout
from pathaware.settings import at_least

MOST_STEPS = 10_000
"""Every point of a path is kept."""


class Rule(nn.Module, ABC):
    """One step of adaptation. Its learned coefficients Φ are ordinary parameters of this module.

    `layout` says which parameters of the network adapt and where they lie in the flat vector; `steps`
    is how many steps the rule is trained for. Subclasses define `step`.
    """

    def __init__(self, network: nn.Module | Layout, steps: int) -> None:
        super().__init__()
        at_least(1, steps=steps)
        if steps > MOST_STEPS:
            raise UsageError(f"steps: {steps} is not allowed; at most {MOST_STEPS}")
        self.layout = network if isinstance(network, Layout) else Layout.of(network)
        self.steps = steps

    @abstractmethod
    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        """θⱼ₊₁ from `points` = [θ₀ … θⱼ] and the gradient of the support loss at θⱼ, all `[T, D]`.

        A `j` of `steps` or more comes only when somebody asked for more steps than the rule was
        trained for; the coefficients of the last trained step are used again then.
        """
