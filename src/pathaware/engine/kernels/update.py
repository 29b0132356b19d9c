"""The preconditioned step as one kernel, instead of six PyTorch operations and thirty for its derivative."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

from pathaware.core.parameters import GroupBroadcast
from pathaware.engine.kernels.launch import blocks

_BLOCK = 512


class Update(Function):
    """θ − Q ∘ g, or, with P and an earlier point θ′, (1 − P)(θ − Q ∘ g) + P ∘ θ′.

    Points are `[T, D]`, `q` and `p` are `[D]`.
    """

    @staticmethod
    def forward(
        ctx: Any, point: Tensor, gradient: Tensor, q: Tensor, back: Tensor | None, p: Tensor | None
    ) -> Tensor:
        gradient = gradient.contiguous()
        ctx.save_for_backward(point, gradient, q, back, p)
        out = torch.empty_like(gradient)
        update_kernel[(blocks(gradient.shape[1], _BLOCK),)](
            *_operands(point, gradient, q, back, p), out, *_sizes(point, back),
            TASKS=len(gradient), SKIP=back is not None, BLOCK=_BLOCK,
        )  # fmt: skip
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        point, gradient, q, back, p = ctx.saved_tensors
        v = v.contiguous()
        skips = back is not None
        to_gradient = torch.empty_like(gradient)
        to_point, to_back = (torch.empty_like(gradient), torch.empty_like(gradient)) if skips else (v, v)
        to_q = torch.empty_like(gradient[0])
        to_p = torch.empty_like(gradient[0]) if skips else to_q
        update_derivative_kernel[(blocks(gradient.shape[1], _BLOCK),)](
            v, *_operands(point, gradient, q, back, p), to_point, to_gradient, to_back, to_q, to_p,
            *_sizes(point, back), TASKS=len(gradient), SKIP=skips, BLOCK=_BLOCK,
        )  # fmt: skip
        return to_point, to_gradient, to_q, to_back if skips else None, to_p if skips else None


def _operands(
    point: Tensor, gradient: Tensor, q: Tensor, back: Tensor | None, p: Tensor | None
) -> tuple[Tensor, ...]:
    """Arguments in the kernels' order; stand-ins for missing ones are never read."""
    return point, gradient, point if back is None else back, q, q if p is None else p


def _sizes(point: Tensor, back: Tensor | None) -> tuple[int, int, int]:
    """Strides of the points over tasks, 0 if all tasks share one, and D."""
    return point.stride(0), 0 if back is None else back.stride(0), point.shape[1]


class Broadcast(Function):
    """`GroupBroadcast` of coefficients `[n, groups]`, whose derivative is one kernel for all rows."""

    @staticmethod
    def forward(ctx: Any, coefficients: Tensor, groups: GroupBroadcast) -> Tensor:
        ctx.groups = groups
        return coefficients.index_select(-1, groups.index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, values: Tensor) -> tuple[Tensor, None]:
        return sum_groups(values, ctx.groups.starts, ctx.groups.order), None


def sum_groups(values: Tensor, starts: Tensor, order: Tensor | None = None) -> Tensor:
    """Sums `[n, groups]` of `values [n, D]`; group g is `order[starts[g] : starts[g + 1]]`, or, without an
    order, lies at these places itself."""
    values, groups = values.contiguous(), len(starts) - 1
    sums = values.new_empty(len(values), groups)
    block, warps = (256, 4) if groups >= 64 else (4096, 16)  # many short sums, or a few long ones
    sum_groups_kernel[(groups, len(values))](
        values, starts if order is None else order, starts, sums, values.shape[1],
        ORDERED=order is None, BLOCK=block, num_warps=warps,
    )  # fmt: skip
    return sums


@triton.jit
def update_kernel(
    point, gradient, back, q, p, out, point_stride, back_stride, size, TASKS: tl.constexpr,
    SKIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = e < size
    rate = tl.load(q + e, mask=ok)
    if SKIP:
        blend = tl.load(p + e, mask=ok)
    for task in range(TASKS):
        at = task * size.to(tl.int64) + e
        moved = tl.load(point + task * point_stride + e, mask=ok) - rate * tl.load(gradient + at, mask=ok)
        if SKIP:
            moved += blend * (tl.load(back + task * back_stride + e, mask=ok) - moved)
        tl.store(out + at, moved, mask=ok)


@triton.jit
def update_derivative_kernel(
    v, point, gradient, back, q, p, to_point, to_gradient, to_back, to_q, to_p,
    point_stride, back_stride, size, TASKS: tl.constexpr, SKIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Cotangents of θⱼ, of the gradient and of θⱼ₋w; and of Q and P per element, summed over tasks."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = e < size
    rate = tl.load(q + e, mask=ok)
    of_q = tl.zeros((BLOCK,), v.dtype.element_ty)
    of_p = tl.zeros((BLOCK,), v.dtype.element_ty)
    if SKIP:
        blend = tl.load(p + e, mask=ok)
    for task in range(TASKS):
        at = task * size.to(tl.int64) + e
        given = tl.load(v + at, mask=ok)
        descent = tl.load(gradient + at, mask=ok)
        if SKIP:
            moved = tl.load(point + task * point_stride + e, mask=ok) - rate * descent
            earlier = tl.load(back + task * back_stride + e, mask=ok)
            of_p += given * (earlier - moved)
            tl.store(to_back + at, blend * given, mask=ok)
            given -= blend * given
            tl.store(to_point + at, given, mask=ok)
        of_q -= descent * given
        tl.store(to_gradient + at, -rate * given, mask=ok)
    tl.store(to_q + e, of_q, mask=ok)
    if SKIP:
        tl.store(to_p + e, of_p, mask=ok)


@triton.jit
def sum_groups_kernel(
    values, order, starts, sums, size, ORDERED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Sums the values of each group g of a row, which lie at `order[starts[g] : starts[g + 1]]`; if they are
    ORDERED, at `starts[g]` and after."""
    group = tl.program_id(0)
    row = tl.program_id(1)
    values += row * size
    start = tl.load(starts + group)
    end = tl.load(starts + group + 1)
    total = tl.zeros((BLOCK,), values.dtype.element_ty)
    for first in range(start, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        place = at if ORDERED else tl.load(order + at, mask=at < end, other=0)
        total += tl.load(values + place, mask=at < end, other=0.0)
    tl.store(sums + row * tl.num_programs(0) + group, tl.sum(total, 0))
