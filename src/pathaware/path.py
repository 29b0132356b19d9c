"""The inner loop: unrolls an update rule into a path θ₀ → θ₁ → … → θₙ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recompute_in_backward

from pathaware.layout import Layout
from pathaware.rules.base import Rule

Order = Literal["second", "first", "none"]
"""What is differentiable: everything; all but the inner gradients; nothing (no graph is kept)."""

Gradient = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""(step j, point `[T, D]`) → the loss that step j descends, `[T]`, and its gradient `[T, D]`."""


@dataclass
class Path:
    """The points a batch of T tasks visited, and what was seen there.

    `points` holds θ₀ … θₙ, each `[T, D]`; `losses` the support loss at θ₀ … θₙ₋₁, each `[T]`;
    `reach` how much of each step the trust region let through, each `[T]`, 1 where it did not act.
    """

    layout: Layout
    points: list[Tensor]
    losses: list[Tensor] = field(default_factory=list)
    reach: list[Tensor] = field(default_factory=list)

    @property
    def end(self) -> Tensor:
        return self.points[-1]

    def parameters(self, j: int) -> dict[str, Tensor]:
        """The network's parameters at θⱼ by name, each with a leading task axis."""
        return self.layout.views(self.points[j])


def unroll(
    rule: Rule,
    start: Tensor,
    gradient: Gradient,
    steps: int,
    *,
    order: Order = "second",
    trust: float | None = None,
    checkpoint: bool = False,
) -> Path:
    """Follow `rule` for `steps` steps from `start` `[T, D]`.

    With `checkpoint` each step's activations are dropped and computed again in the backward pass; the
    result is the same to the last bit, memory no longer grows by a network's activations per step.
    """
    path = Path(rule.layout, [start])
    radius = None if trust is None else trust * start.norm(dim=-1, keepdim=True)

    def advance(j: int, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        loss, slope = gradient(j, point)
        return loss, *within(radius, point, rule.step(j, path.points[: j + 1], slope))

    for j in range(steps):
        point = path.end
        if order == "second" and checkpoint:
            loss, following, reach = recompute_in_backward(advance, j, point, use_reentrant=False)
        else:
            loss, following, reach = advance(j, point)
        path.points.append(following.detach() if order == "none" else following)
        path.losses.append(loss.detach())
        path.reach.append(reach.detach())
    return path


def within(radius: Tensor | None, point: Tensor, following: Tensor) -> tuple[Tensor, Tensor]:
    """Shorten the step from `point` to `following` to at most `radius` `[T, 1]`; both are `[T, D]`.

    Also returns the fraction of the step that is kept, `[T]`. A step inside the radius is returned
    as it is, bit by bit. A step that is not finite is not taken.
    """
    if radius is None:
        return following, following.new_ones(following.shape[0])
    if not point.is_cuda:
        # On a CPU a look at the lengths is free, and steps inside the radius then cost nothing more.
        with torch.no_grad():
            if bool(((following - point).square().sum(-1, keepdim=True) <= radius.square()).all()):
                return following, following.new_ones(following.shape[0])
    step = following - point
    square = step.square().sum(dim=-1, keepdim=True)
    finite = square.isfinite()
    long = finite & (square > radius.square())
    # The inner `where` keeps the root away from steps of length zero, whose derivative is infinite.
    kept = torch.where(long, radius * torch.where(long, square, 1.0).rsqrt(), 1.0)
    taken = torch.where(long, point + kept * step, following)
    return torch.where(finite, taken, point), (kept * finite).squeeze(-1)
