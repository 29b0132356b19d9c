"""PAMELA (Rajasegaran, Khan, Hayat, Khan and Shah, 2020, arXiv:2010.09291).

    θⱼ₊₁ = θⱼ − Qⱼ ∘ ∇L(θⱼ)                                       in general
    θⱼ₊₁ = (1 − Pⱼ)(θⱼ − Qⱼ ∘ ∇L(θⱼ)) + Pⱼ θⱼ₋w                   where j mod w = 0 and j ≥ w

A preconditioner Qⱼ for every step says how each part of the network should move at that point of the
path; a skip connection Pⱼ blends in the point w steps back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from pathaware.batched import kernels
from pathaware.errors import UsageError
from pathaware.layout import Granularity, Layout, Spread
from pathaware.rules.base import Rule

Preconditioner = Literal["per-step", "shared", "constant"]


class Pamela(Rule):
    """Learned steps and skips: `q [n, groups]` starting at `rate`, `p [skips, groups]` starting at 0.

    - `skip`: the interval w, from 1 to n; `None` for w = ∞, that is Q without P.
    - `q`: `per-step`, the method; `shared`, one Q for all steps; `constant`, P without Q.
    - `q_granularity`, `p_granularity`: what shares one entry, see `Layout.index`.

    Steps beyond the trained ones repeat the last Q and skip nothing.
    """

    learned_rates = ("q",)

    q: Tensor
    p: nn.Parameter

    def __init__(
        self,
        network: nn.Module | Layout,
        steps: int = 5,
        *,
        rate: float = 0.01,
        skip: int | None = 2,
        q: Preconditioner = "per-step",
        q_granularity: Granularity = "filter",
        p_granularity: Granularity = "layer",
    ) -> None:
        super().__init__(network, steps)
        if skip is not None and not 1 <= skip <= steps:
            raise UsageError(f"skip: {skip} is not allowed; 1 to {steps} (the number of steps), or none")
        if q not in get_args(Preconditioner):
            raise UsageError(f"q: {q!r} is none of {', '.join(get_args(Preconditioner))}")
        self.skip = skip
        self.spread_q = Spread(self.layout, q_granularity)
        self.spread_p = Spread(self.layout, p_granularity)
        rows = steps if q == "per-step" else 1
        start = torch.full((rows, self.spread_q.groups), rate)
        if q == "constant":
            self.register_buffer("q", start, persistent=False)
        else:
            self.q = nn.Parameter(start)
        self.p = nn.Parameter(torch.zeros(len(self.skips), self.spread_p.groups))

    @property
    def skips(self) -> list[int]:
        """The steps j that end in a skip connection."""
        return [] if self.skip is None else list(range(self.skip, self.steps, self.skip))

    def spreads(self) -> dict[str, Spread]:
        return {"q": self.spread_q, "p": self.spread_p}

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        q = self.q[min(j, len(self.q) - 1)]
        p = earlier = None
        if self.skip is not None and j in self.skips:
            p, earlier = self.p[j // self.skip - 1], points[j - self.skip]
        if torch.is_grad_enabled() and kernels.usable(gradient):  # it is the derivative that gains by it
            from pathaware.batched.kernels.update import Update  # needs Triton

            fused: Tensor = Update.apply(points[-1], gradient, q, self.spread_q, earlier, p, self.spread_p)
            return fused
        moved = torch.addcmul(points[-1], self.spread_q(q), gradient, value=-1)
        return moved if p is None or earlier is None else torch.lerp(moved, earlier, self.spread_p(p))
