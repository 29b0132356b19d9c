"""The preconditioned step, fused into one kernel where that is possible."""

from __future__ import annotations

import torch
from torch import Tensor

from pathaware.core.parameters import GroupBroadcast
from pathaware.engine import kernels


def preconditioned_step(
    point: Tensor,
    gradient: Tensor,
    q: Tensor,
    q_groups: GroupBroadcast,
    earlier: Tensor | None = None,
    p: Tensor | None = None,
    p_groups: GroupBroadcast | None = None,
) -> Tensor:
    """θ − Q ∘ g, or, with P and an earlier point θ′, (1 − P)(θ − Q ∘ g) + P ∘ θ′.

    Points and gradients are `[T, D]`; `q` and `p` hold one entry per group of parameters.
    """
    if torch.is_grad_enabled() and kernels.usable(gradient):  # only the derivative gains from the kernel
        from pathaware.engine.kernels.update import Update  # needs Triton

        fused: Tensor = Update.apply(point, gradient, q, q_groups, earlier, p, p_groups or q_groups)
        return fused
    moved = torch.addcmul(point, q_groups(q), gradient, value=-1)
    if p is None or p_groups is None or earlier is None:
        return moved
    return torch.lerp(moved, earlier, p_groups(p))
