"""PAMELA's step on CUDA: one kernel where PyTorch's own operations take six, and their derivative thirty."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from pathaware.batched.kernels.device import update as device
from pathaware.batched.kernels.launch import blocks
from pathaware.layout import Spread

_BLOCK = 512


class Update(Function):
    """θ − Q ∘ g, or, with a point θ′ to skip back to, (1 − P)(θ − Q ∘ g) + P ∘ θ′.

    Points are `[T, D]`; q and p hold one entry for each of their groups.
    """

    @staticmethod
    def forward(
        ctx: Any, point: Tensor, slope: Tensor, q: Tensor, spread_q: Spread, back: Tensor | None,
        p: Tensor | None, spread_p: Spread,
    ) -> Tensor:  # fmt: skip
        slope = slope.contiguous()
        ctx.spreads = spread_q, spread_p
        ctx.save_for_backward(point, slope, q, back, p)
        out = torch.empty_like(slope)
        device.update[(blocks(slope.shape[1], _BLOCK),)](
            *_operands(point, slope, q, back, p, spread_q, spread_p), out, *_sizes(point, back),
            TASKS=len(slope), SKIP=back is not None, BLOCK=_BLOCK,
        )  # fmt: skip
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        point, slope, q, back, p = ctx.saved_tensors
        spread_q, spread_p = ctx.spreads
        v = v.contiguous()
        skips = back is not None
        to_slope = torch.empty_like(slope)
        to_point, to_back = (torch.empty_like(slope), torch.empty_like(slope)) if skips else (v, v)
        to_q = torch.empty_like(slope[0])
        to_p = torch.empty_like(slope[0]) if skips else to_q
        device.update_derivative[(blocks(slope.shape[1], _BLOCK),)](
            v, *_operands(point, slope, q, back, p, spread_q, spread_p),
            to_point, to_slope, to_back, to_q, to_p, *_sizes(point, back),
            TASKS=len(slope), SKIP=skips, BLOCK=_BLOCK,
        )  # fmt: skip
        wanted = ctx.needs_input_grad[2]
        return (
            to_point,
            to_slope,
            _group_sums(to_q, spread_q) if wanted else None,
            None,
            to_back if skips else None,
            _group_sums(to_p, spread_p) if skips else None,
            None,
        )


def _operands(
    point: Tensor, slope: Tensor, q: Tensor, back: Tensor | None, p: Tensor | None, spread_q: Spread,
    spread_p: Spread,
) -> tuple[Tensor, ...]:  # fmt: skip
    """In the kernels' order; what is not there is never read."""
    there = (point if back is None else back), q, (q if p is None else p)
    return point, slope, *there, spread_q.index, spread_p.index


def _sizes(point: Tensor, back: Tensor | None) -> tuple[int, int, int]:
    """Strides of the points over tasks, 0 where all tasks share one; and D."""
    return point.stride(0), 0 if back is None else back.stride(0), point.shape[1]


def _group_sums(values: Tensor, spread: Spread) -> Tensor:
    if spread.identity:
        return values
    if spread.groups < 64:  # a few long sums: PyTorch takes many threads for each
        return spread.sums(values)
    sums = values.new_empty(spread.groups)
    device.sum_groups[(spread.groups,)](values, spread.order, spread.starts, sums, BLOCK=256)
    return sums
