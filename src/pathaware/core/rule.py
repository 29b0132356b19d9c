"""Update rules: compute the next point from the path so far and the gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.parameters import GroupBroadcast, Layout
from pathaware.core.settings import at_least

if TYPE_CHECKING:
    from pathaware.core.learner import Context

Memory = Any
"""State that a rule carries along a path: tensors or tuples of them, never changed in place."""


@dataclass(frozen=True)
class LinearSteps:
    """All n steps of a path, each linear in the gradient and earlier points, with the same coefficients for
    all tasks:

        θⱼ₊₁ = θⱼ − Qⱼ ∘ ∇L(θⱼ)                                 in general
        θⱼ₊₁ = (1 − P)(θⱼ − Qⱼ ∘ ∇L(θⱼ)) + P ∘ θₖ               where `skips` has j: (row of P, k)

    `q` is one constant for all steps, `[1, D]` or `[n, D]`; `p` is `[skips, D]`.
    """

    count: int
    q: float | Tensor
    p: Tensor | None = None
    skips: Mapping[int, tuple[int, int]] = field(default_factory=dict)


MAX_STEPS = 10_000
"""Upper limit of the number of steps, because every point of a path is stored."""


class Rule(nn.Module):
    """One step of adaptation. Its learned coefficients Φ are ordinary parameters of this module.

    `layout` says which parameters of the network adapt and where they lie in the flat vector; `steps` is the
    number of steps that the rule is trained for. Subclasses define `step`; those that need more than the path
    and the gradient define `advance`, `begin` or `objective`.
    """

    fixed_ways: ClassVar[bool] = False
    """True if learned parameters are tied to class indices, which rules out more classes than in training."""
    curvature: ClassVar[bool] = False
    """True if steps ask for `Context.curvature` at the point of their gradient."""
    sequential: ClassVar[bool] = False
    """True if predictions depend on the order of the support set."""

    step_sizes: tuple[str, ...] = ()
    """Names of learned step sizes. They are scaled when the number of classes changes (see `change_ways`)."""
    weighable: bool = True
    """True if the derivative of a step by the weights of support examples can be taken, see `influence`."""
    joint: bool = False
    """True if steps use all queries of a task (`Context.query_x`), where inference allows it."""

    def __init__(self, network: nn.Module | Layout, steps: int) -> None:
        super().__init__()
        at_least(1, steps=steps)
        if steps > MAX_STEPS:
            raise UsageError(f"steps: {steps} is not allowed; at most {MAX_STEPS}")
        self.layout = network if isinstance(network, Layout) else Layout.of(network)
        self.steps = steps

    def begin(self, initial: Tensor, context: Context) -> tuple[Tensor, Memory]:
        """Return the first point of each path, `[T, D]`, and the initial memory.

        `initial` is θ₀ for each task. Most rules return it unchanged and have no memory.
        """
        return initial, None

    def advance(
        self, j: int, points: Sequence[Tensor], gradient: Tensor, losses: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """Like `step`, for rules that need the losses `[T]` at θⱼ or memory; return the point and memory."""
        return self.step(j, points, gradient), memory

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        """θⱼ₊₁ from `points` = [θ₀ … θⱼ] and the gradient of the support loss at θⱼ, all `[T, D]`.

        `j` is `steps` or more only if the caller asked for more steps than the rule was trained for. Then the
        coefficients of the last trained step are used again.
        """
        raise NotImplementedError("a rule must define step or advance")

    def linear_steps(self) -> LinearSteps | None:
        """The trained steps as coefficients, if they say all about them; the engine can then run a whole path
        at once. Not used for a subclass that overrides `step`, `advance`, `begin` or `objective` alone."""
        return None

    @property
    def known_steps(self) -> LinearSteps | None:
        """`linear_steps`, or None if a subclass has changed the steps since."""
        for cls in type(self).__mro__:
            if "linear_steps" in vars(cls):
                return self.linear_steps()
            if {"step", "advance", "begin", "objective"} & set(vars(cls)):
                return None
        return None

    def broadcasts(self) -> dict[str, GroupBroadcast]:
        """Coefficients that groups of parameters share, by name, with their mapping to the flat vector."""
        return {}

    def objective(self, j: int, point: Tensor, context: Context) -> tuple[Tensor, Tensor] | None:
        """Override the loss that step j descends: return the support loss `[T]`, which the divergence guard
        checks, and the loss to descend, `[T]`. None means that both are the support loss."""
        return None

    @property
    def descends_support_loss(self) -> bool:
        """True if `objective` is not overridden, so that inner gradients need no autograd."""
        return type(self).objective is Rule.objective

    def class_blocks(self) -> Mapping[str, tuple[int, Sequence[int]]]:
        """Learned tensors in which classes are only a part of an axis, by name: that axis, and the sizes of
        the blocks along it. If the number of classes changes, `change_ways` converts each block by itself.
        """
        return {}

    def coefficient_steps(self, name: str) -> Sequence[int]:
        """The step that uses each row of a coefficient in `broadcasts`; empty if one row serves all steps."""
        return ()
