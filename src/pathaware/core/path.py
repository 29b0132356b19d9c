"""Whether a computation is being recorded as a graph of operations, to be compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils.checkpoint import checkpoint as recompute_in_backward

from pathaware.core.parameters import Layout
from pathaware.core.rule import Memory, Rule


def tracing() -> bool:
    """True while `make_fx` runs the code: no value of a tensor may decide what happens then."""
    return get_proxy_mode() is not None


# The inner loop: unrolls an update rule into a path θ₀ → θ₁ → … → θₙ.


Order = Literal["second", "first", "none"]
"""What is differentiable: everything; all but the inner gradients; nothing (no graph is kept)."""

Gradient = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""(step j, point `[T, D]`) → the loss that step j descends, `[T]`, and its gradient `[T, D]`."""


RUNAWAY = 10.0
"""How many times the loss at its start a task may reach before it is stopped where it is."""


@dataclass
class Path:
    """The points a batch of T tasks visited, and what was seen there.

    `points` holds θ₀ … θₙ, each `[T, D]`; `losses` the support loss there, each `[T]`, up to the last
    point where it was taken.
    """

    layout: Layout
    points: list[Tensor]
    losses: list[Tensor] = field(default_factory=list)

    @property
    def end(self) -> Tensor:
        return self.points[-1]

    def parameters(self, j: int) -> dict[str, Tensor]:
        """The network's parameters at θⱼ by name, each with a leading task axis."""
        return self.layout.views(self.points[j])

    def reverted(self, j: int = -1) -> Tensor:
        """Which tasks are worse off at θⱼ than at θ₀ by their own support loss: `[T]`."""
        return ~(self.losses[j] <= self.losses[0])  # so written that NaN counts as worse

    def guarded(self, j: int = -1) -> Tensor:
        """Where each task ends if it stops at step j: θⱼ, or, if it reverted, the best point before it.

        Descent with learned, large steps diverges on a rare task, and then without bound. A task that
        has got worse on the very examples it adapts to cannot have learned from them; all others are
        returned as they are, bit by bit.
        """
        reverted = self.reverted(j)
        if _none(reverted):
            return self.points[j]
        last = range(len(self.points))[j] + 1
        best = torch.stack(self.losses[:last]).nan_to_num(nan=torch.inf).argmin(0)
        fallback = torch.stack(self.points[:last])[best, torch.arange(len(best), device=best.device)]
        return torch.where(reverted[:, None], fallback, self.points[j])


def unroll(
    rule: Rule,
    start: Tensor,
    gradient: Gradient,
    steps: int,
    *,
    order: Order = "second",
    guard: bool = True,
    checkpoint: bool = False,
    memory: Memory = None,
) -> Path:
    """Follow `rule` for `steps` steps from `start` `[T, D]`, which it `begin`s with `memory`.

    With `guard` a task that has run away takes no further step: from there losses square with every step,
    and derivatives overflow even where `Path.guarded` turns the task back in the end.

    With `checkpoint` each step's activations are dropped and computed again in the backward pass; the
    result is the same to the last bit, memory no longer grows by a network's activations per step.
    """
    path = Path(rule.layout, [start])

    def advance(j: int, point: Tensor, memory: Memory) -> tuple[Tensor, Tensor, Memory]:
        loss, slope = gradient(j, point)
        following, memory = rule.advance(j, path.points[: j + 1], slope, loss, memory)
        if guard and j > 0:
            following = _stay_if(~(loss.detach() <= RUNAWAY * path.losses[0]), point, following)
        return loss, following, memory

    for j in range(steps):
        if order == "second" and checkpoint:
            found = recompute_in_backward(advance, j, path.end, memory, use_reentrant=False)
        else:
            found = advance(j, path.end, memory)
        loss, following, memory = found
        path.points.append(following.detach() if order == "none" else following)
        path.losses.append(loss.detach())
    return path


def _stay_if(stopped: Tensor, point: Tensor, following: Tensor) -> Tensor:
    return following if _none(stopped) else torch.where(stopped[:, None], point, following)


def _none(tasks: Tensor) -> bool:
    """Whether no task is marked, as far as that can be told for free: a look at a GPU would stall it."""
    return not tasks.is_cuda and not tracing() and not bool(tasks.any())
