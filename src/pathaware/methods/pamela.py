"""PAMELA (Rajasegaran, Khan, Hayat, Khan and Shah, 2020, arXiv:2010.09291).

    θⱼ₊₁ = θⱼ − Qⱼ ∘ ∇L(θⱼ)                                       in general
    θⱼ₊₁ = (1 − Pⱼ)(θⱼ − Qⱼ ∘ ∇L(θⱼ)) + Pⱼ θⱼ₋w                   where j mod w = 0 and j ≥ w

Preconditioner Qⱼ scales the gradient of step j; gradient-skip connection Pⱼ blends in the point w steps back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.parameters import Granularity, GroupBroadcast, Layout
from pathaware.core.rule import LinearSteps, Memory, Rule
from pathaware.core.settings import at_least
from pathaware.engine.kernels import broadcast, preconditioned_step
from pathaware.methods.method import Method

if TYPE_CHECKING:
    from pathaware.core.rule import Context

QSharing = Literal["per-step", "shared", "constant"]


class Pamela(Rule):
    """The rule of PAMELA: learns `q [n, groups]`, initialised to `rate`, and `p [skips, groups]`, to 0.

    >>> rule = Pamela(nn.Linear(2, 3), steps=5, skip=2)
    >>> rule.skips, rule.q.shape, rule.p.shape
    ([2, 4], torch.Size([5, 9]), torch.Size([2, 1]))

    - `skip`: the interval w, 1 to n, or `None` for Q without P. Steps beyond n repeat the last Q, unskipped.
    - `q`: `per-step`, the method; `shared`, one Q for all steps; `constant`, P without Q.
    - `q_granularity`, `p_granularity`: which parameters share an entry, see `Layout.index`.
    """

    step_sizes = ("q",)
    q: Tensor
    p: nn.Parameter

    def __init__(
        self,
        network: nn.Module | Layout,
        steps: int = 5,
        *,
        rate: float = 0.01,
        skip: int | None = 2,
        q: QSharing = "per-step",
        q_granularity: Granularity = "filter",
        p_granularity: Granularity = "layer",
    ) -> None:
        super().__init__(network, steps)
        at_least(0, rate=rate)
        if skip is not None and not 1 <= skip <= steps:
            raise UsageError(f"skip: {skip} is not allowed; must be 1 to {steps} (steps = {steps}), or none")
        if q not in get_args(QSharing):
            raise UsageError(f"q: {q!r} must be one of {', '.join(get_args(QSharing))}")
        self.interval = skip or steps  # w; one of n steps never skips
        self.skips = list(range(self.interval, steps, self.interval))  # the steps j that end in a skip
        self.q_groups = GroupBroadcast(self.layout, q_granularity)
        self.p_groups = GroupBroadcast(self.layout, p_granularity)
        initial = torch.full((steps if q == "per-step" else 1, self.q_groups.groups), float(rate))
        if q == "constant":
            self.register_buffer("q", initial, persistent=False)
        else:
            self.q = nn.Parameter(initial)
        self.p = nn.Parameter(torch.zeros(len(self.skips), self.p_groups.groups))

    def broadcasts(self) -> dict[str, GroupBroadcast]:
        return {"q": self.q_groups, "p": self.p_groups}

    def coefficient_steps(self, name: str) -> Sequence[int]:
        return self.skips if name == "p" else range(len(self.q)) if len(self.q) > 1 else ()

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Q of every step and P of every skip, `[n, D]`."""
        return broadcast(self.q_groups, self.q), broadcast(self.p_groups, self.p)

    def linear_steps(self) -> LinearSteps:
        earlier = {j: (row, j - self.interval) for row, j in enumerate(self.skips)}
        return LinearSteps(self.steps, *self.coefficients(), earlier)

    def begin(self, initial: Tensor, context: Context) -> tuple[Tensor, Memory]:
        return initial, tuple(each.unbind() for each in self.coefficients())  # once for the whole path

    def advance(
        self, j: int, points: Sequence[Tensor], gradient: Tensor, losses: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return self.step(j, points, gradient, memory), memory

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor, memory: Memory = None) -> Tensor:
        q, p = memory or self.coefficients()
        rate = q[min(j, len(q) - 1)]
        skip = (points[j - self.interval], p[j // self.interval - 1]) if j in self.skips else ()
        return preconditioned_step(points[-1], gradient, rate, *skip)


METHOD = Method(
    "pamela",
    "learns a preconditioner for every step and skip connections along the path",
    "Rajasegaran, Khan, Hayat, Khan and Shah, 2020, arXiv:2010.09291",
    2020,
    Pamela,
)
