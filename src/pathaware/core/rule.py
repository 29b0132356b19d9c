"""What an update rule is: given the path so far and the gradient here, where is the next point?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.parameters import GroupBroadcast, Layout
from pathaware.core.settings import at_least

if TYPE_CHECKING:
    from pathaware.core.learner import Context

Memory = Any
"""Tensors, or tuples of them, that a rule carries along a path; never changed in place."""

MOST_STEPS = 10_000
"""Every point of a path is kept."""


class Rule(nn.Module):
    """One step of adaptation. Its learned coefficients Φ are ordinary parameters of this module.

    `layout` says which parameters of the network adapt and where they lie in the flat vector; `steps`
    is how many steps the rule is trained for. Subclasses define `step`; those that need more than the path
    and the gradient define `advance`, `begin` or `objective`.
    """

    step_sizes: ClassVar[tuple[str, ...]] = ()
    """Which of its parameters are lengths of steps: with twice the classes, each has half the slope."""
    fixed_ways: ClassVar[bool] = False
    """Whether what it learns tells class from class, so that there is nothing to take for another one."""

    def __init__(self, network: nn.Module | Layout, steps: int) -> None:
        super().__init__()
        at_least(1, steps=steps)
        if steps > MOST_STEPS:
            raise UsageError(f"steps: {steps} is not allowed; at most {MOST_STEPS}")
        self.layout = network if isinstance(network, Layout) else Layout.of(network)
        self.steps = steps

    def begin(self, start: Tensor, context: Context) -> tuple[Tensor, Memory]:
        """Where the paths of T tasks begin, `[T, D]`, and what the rule remembers while it follows them.

        `start` is θ₀ for each task. Most rules begin there and remember nothing but the path.
        """
        return start, None

    def advance(
        self, j: int, points: Sequence[Tensor], gradient: Tensor, losses: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """`step` for rules that need more: losses `[T]` at θⱼ, and what they remember of earlier steps."""
        return self.step(j, points, gradient), memory

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        """θⱼ₊₁ from `points` = [θ₀ … θⱼ] and the gradient of the support loss at θⱼ, all `[T, D]`.

        A `j` of `steps` or more comes only when somebody asked for more steps than the rule was
        trained for; the coefficients of the last trained step are used again then.
        """
        raise NotImplementedError("a rule must define step or advance")

    def broadcasts(self) -> dict[str, GroupBroadcast]:
        """Coefficients of this module that groups of parameters share, by name, and how they do."""
        return {}

    def objective(self, j: int, point: Tensor, context: Context) -> tuple[Tensor, Tensor] | None:
        """What step j descends, where that is not the support loss: the support loss `[T]`, by which the
        guard judges, and what is descended, `[T]`."""
        return None

    def coefficient_steps(self, name: str) -> Sequence[int]:
        """The step that uses each row of a coefficient in `broadcasts`; empty if one row serves all steps."""
        return ()
