"""PAMELA (Rajasegaran, Khan, Hayat, Khan and Shah, 2020, arXiv:2010.09291).

    θⱼ₊₁ = θⱼ − α Qⱼ ∘ ∇L(θⱼ)                                     in general
    θⱼ₊₁ = (1 − Pⱼ)(θⱼ − α Qⱼ ∘ ∇L(θⱼ)) + Pⱼ θⱼ₋w                 where j mod w = 0 and j ≥ w

Preconditioner Qⱼ scales the gradient of step j; gradient-skip connection Pⱼ blends in the point w steps back.

The paper prints no α in its equations. Its text sets the inner learning rate to 0.01 and finds MAML again
with Q = 1 and P = 0; both hold for α = 0.01 and Q from 1, the defaults. Adam moves every parameter by its
learning rate, whatever the scale of the parameter. So Q learns s times as fast, relative to its size, with
α = 0.01 s and Q from 1 / s. This speed s is 1 by default, and 100 where Q is the step size itself (α = 1, Q
from 0.01), as in versions before 0.3.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.operations import broadcast, preconditioned_step
from pathaware.core.parameters import Granularity, GroupBroadcast, Layout
from pathaware.core.rule import Coefficient, LinearSteps, Memory, Rule
from pathaware.core.settings import at_least, one_of
from pathaware.methods.method import Method

if TYPE_CHECKING:
    from pathaware.core.rule import Context

QSharing = Literal["per-step", "shared", "constant"]
RATE = 0.01
_Q_START = 1.0  # the default itself, not an equal number: an argument that is this object was not given


class Pamela(Rule):
    """The rule of PAMELA: learns `q [n, groups]`, from `q_start`, and `p [skips, groups]`, from `p_start`.

    >>> rule = Pamela(nn.Linear(2, 3), steps=5, skip=2)
    >>> rule.skips, rule.q.shape, rule.p.shape
    ([2, 4], torch.Size([5, 9]), torch.Size([2, 1]))

    - `rate`: the constant α, so that steps begin with a size of `rate * q_start`. The speed s of Q is
      `rate` = 0.01 s with `q_start` = 1 / s; a fast Q suits short trainings, a slow one long ones.
    - `skip`: the interval w, 1 to n, or `None` for Q without P. Steps beyond n repeat the last Q, unskipped.
    - `q`: `per-step`, the method; `shared`, one Q for all steps; `constant`, P without Q.
    - `q_granularity`, `p_granularity`: which parameters share an entry, see `Layout.index`.
    """

    q: Tensor
    p: nn.Parameter

    def __init__(
        self,
        network: nn.Module | Layout,
        steps: int = 5,
        *,
        rate: float = RATE,
        q_start: float = _Q_START,
        p_start: float = 0.0,
        skip: int | None = 2,
        q: QSharing = "per-step",
        q_granularity: Granularity = "filter",
        p_granularity: Granularity = "layer",
    ) -> None:
        super().__init__(network, steps)
        at_least(0, rate=rate, q_start=q_start)
        if rate != RATE and q_start is _Q_START:
            warnings.warn(
                f"pamela: rate = {rate:g} is now a constant factor of Q, which is learned from 1; for Q "
                f"learned directly from {rate:g}, as before 0.3, set rate = 1 and q_start = {rate:g}",
                FutureWarning,
                stacklevel=2,
            )
        if skip is not None and not 1 <= skip <= steps:
            raise UsageError(f"skip: {skip} is not allowed; must be 1 to {steps} (steps = {steps}), or none")
        one_of(QSharing, q=q)
        self.interval = skip or steps  # w; one of n steps never skips
        self.skips = list(range(self.interval, steps, self.interval))  # the steps j that end in a skip
        self.q_groups = GroupBroadcast(self.layout, q_granularity)
        self.p_groups = GroupBroadcast(self.layout, p_granularity)
        self.rate = rate
        initial = torch.full((steps if q == "per-step" else 1, self.q_groups.groups), float(q_start))
        if q == "constant":
            self.register_buffer("q", initial, persistent=False)
        else:
            self.q = nn.Parameter(initial)
        self.p = nn.Parameter(torch.full((len(self.skips), self.p_groups.groups), float(p_start)))

    def coefficients(self) -> Mapping[str, Coefficient]:
        steps = range(len(self.q)) if len(self.q) > 1 else ()
        q, p = Coefficient(self.q_groups, steps, self.rate), Coefficient(self.p_groups, self.skips)
        return {"q": q, "p": p}

    def per_parameter(self) -> tuple[Tensor, Tensor]:
        """α Q of every step and P of every skip, `[n, D]`."""
        return broadcast(self.q_groups, self.rate * self.q), broadcast(self.p_groups, self.p)

    def linear_steps(self) -> LinearSteps:
        earlier = {j: (row, j - self.interval) for row, j in enumerate(self.skips)}
        return LinearSteps(self.steps, *self.per_parameter(), earlier)

    def begin(self, initial: Tensor, context: Context) -> tuple[Tensor, Memory]:
        return initial, tuple(each.unbind() for each in self.per_parameter())  # once for the whole path

    def advance(
        self, j: int, points: Sequence[Tensor], gradient: Tensor, losses: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return self.step(j, points, gradient, memory), memory

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor, memory: Memory = None) -> Tensor:
        q, p = memory or self.per_parameter()
        rate = q[min(j, len(q) - 1)]
        skip = (points[j - self.interval], p[j // self.interval - 1]) if j in self.skips else ()
        return preconditioned_step(points[-1], gradient, rate, *skip)


def _directly(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of version 1, where Q was the step size itself and began at `rate`."""
    if "q_start" in settings:
        return dict(settings)
    return {**settings, "rate": 1.0, "q_start": settings.get("rate", RATE)}


METHOD = Method(
    "pamela",
    "learns a preconditioner for every step and skip connections along the path",
    "Rajasegaran, Khan, Hayat, Khan and Shah, 2020, arXiv:2010.09291",
    2020,
    Pamela,
    version=2,
    compatible=1,
    earlier=_directly,
)
