"""Operations of update rules that an engine may fuse, and what they compute without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pathaware.core.execution import engine
from pathaware.core.parameters import GroupBroadcast


def fused(name: str, like: Tensor) -> Any:
    """The fused form of an operation for tensors like this one, or None."""
    fast = engine()
    return None if fast is None else fast.operation(name, like)


def broadcast(groups: GroupBroadcast, coefficients: Tensor) -> Tensor:
    """Coefficients `[n, groups]` of n steps as `[n, D]`."""
    if torch.is_grad_enabled() and not groups.identity and (kernel := fused("broadcast", coefficients)):
        spread: Tensor = kernel(coefficients, groups)
    else:
        spread = groups(coefficients)
    return spread


def sums_of_parts(values: Tensor, starts: Tensor, sizes: Sequence[int]) -> Tensor:
    """Sums `[T, parts]` over parts of `values [T, D]` that have these sizes and begin at `starts`."""
    if kernel := fused("sum_groups", values):
        sums: Tensor = kernel(values, starts)
        return sums
    return torch.stack([part.sum(1) for part in values.split_with_sizes(list(sizes), dim=1)], dim=1)


def preconditioned_step(
    point: Tensor, gradient: Tensor, q: Tensor, earlier: Tensor | None = None, p: Tensor | None = None
) -> Tensor:
    """θ − Q ∘ g, or, with P and an earlier point θ′, (1 − P)(θ − Q ∘ g) + P ∘ θ′.

    Points and gradients are `[T, D]`; `q` and `p` are `[D]`.
    """
    kernel = fused("preconditioned_step", gradient) if torch.is_grad_enabled() else None
    if kernel is not None:  # only its derivative gains from it
        moved: Tensor = kernel(point, gradient, q, earlier, p)
        return moved
    moved = torch.addcmul(point, q, gradient, value=-1)
    return moved if p is None or earlier is None else torch.lerp(moved, earlier, p)
