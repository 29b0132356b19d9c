"""A preconditioned step with a skip, element by element over all tasks, and its derivative."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def update(
    point, slope, back, q, p, q_index, p_index, out, point_stride, back_stride, size, TASKS: tl.constexpr,
    SKIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = e < size
    rate = tl.load(q + tl.load(q_index + e, mask=ok, other=0), mask=ok)
    if SKIP:
        blend = tl.load(p + tl.load(p_index + e, mask=ok, other=0), mask=ok)
    for task in range(TASKS):
        at = task * size.to(tl.int64) + e
        moved = tl.load(point + task * point_stride + e, mask=ok) - rate * tl.load(slope + at, mask=ok)
        if SKIP:
            moved += blend * (tl.load(back + task * back_stride + e, mask=ok) - moved)
        tl.store(out + at, moved, mask=ok)


@triton.jit
def update_derivative(
    v, point, slope, back, q, p, q_index, p_index, to_point, to_slope, to_back, to_q, to_p,
    point_stride, back_stride, size, TASKS: tl.constexpr, SKIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Cotangents of θⱼ, of the slope and of θⱼ₋w; of Q and P for every element, summed over tasks."""
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = e < size
    rate = tl.load(q + tl.load(q_index + e, mask=ok, other=0), mask=ok)
    of_q = tl.zeros((BLOCK,), v.dtype.element_ty)
    of_p = tl.zeros((BLOCK,), v.dtype.element_ty)
    if SKIP:
        blend = tl.load(p + tl.load(p_index + e, mask=ok, other=0), mask=ok)
    for task in range(TASKS):
        at = task * size.to(tl.int64) + e
        given = tl.load(v + at, mask=ok)
        descent = tl.load(slope + at, mask=ok)
        if SKIP:
            moved = tl.load(point + task * point_stride + e, mask=ok) - rate * descent
            earlier = tl.load(back + task * back_stride + e, mask=ok)
            of_p += given * (earlier - moved)
            tl.store(to_back + at, blend * given, mask=ok)
            given -= blend * given
            tl.store(to_point + at, given, mask=ok)
        of_q -= descent * given
        tl.store(to_slope + at, -rate * given, mask=ok)
    tl.store(to_q + e, of_q, mask=ok)
    if SKIP:
        tl.store(to_p + e, of_p, mask=ok)


@triton.jit
def sum_groups(values, order, starts, sums, BLOCK: tl.constexpr):
    """Sum of the values of each group, which lie at `order[starts[g] : starts[g + 1]]`."""
    group = tl.program_id(0)
    start = tl.load(starts + group)
    end = tl.load(starts + group + 1)
    total = tl.zeros((BLOCK,), values.dtype.element_ty)
    for first in range(start, end, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total += tl.load(values + tl.load(order + at, mask=at < end, other=0), mask=at < end, other=0.0)
    tl.store(sums + group, tl.sum(total, 0))
