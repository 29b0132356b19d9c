"""Steps of rules as one kernel each.

The preconditioned step takes six PyTorch operations, and thirty for its derivative. That of Meta-LSTM takes a
hundred, and each of them reads and writes numbers per parameter and hidden unit; here a program keeps those
of its parameters in registers, and the derivative computes them again.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import Function

from pathaware.core.parameters import GroupBroadcast
from pathaware.core.path import differentiable_once
from pathaware.engine.kernels.launch import accumulator, blocks, dot_precision

_BLOCK = 512
_COORDINATES = 64
"""Parameters that a program of an LSTM takes at once."""
_PROGRAMS = 264
"""Number of programs for the derivative of an LSTM: two per multiprocessor of an H200."""


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
    @differentiable_once
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
    @differentiable_once
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


class LSTMStep(Function):
    """One step of Meta-LSTM for points `[T, D]`, see `pathaware.methods.meta_lstm`.

    `hidden` and `state` are `[T, H, D]`, `gates` are `[T, 2, D]`. `weights [T, 4, R, R]` turn the rows (h,
    two of the gradient, 1) into the raw input gate, forget gate, output gate and candidate; `gate_weights
    [2, R]` turn the rows (h, 1, θ, gate) into raw gates. R is a power of two; weights beyond the rows are 0.
    Returns the next point, hidden, state and gates.
    """

    @staticmethod
    def forward(
        ctx: Any, point: Tensor, gradient: Tensor, hidden: Tensor, state: Tensor, gates: Tensor,
        weights: Tensor, gate_weights: Tensor, p: float,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        operands = (
            point,
            *(data.contiguous() for data in (gradient, hidden, state, gates)),
            weights,
            gate_weights,
        )
        ctx.save_for_backward(*operands)
        ctx.p = p
        ctx.set_materialize_grads(False)
        out = [torch.empty_like(data) for data in operands[1:5]]
        tasks, _, size = hidden.shape
        lstm_kernel[(blocks(size, _COORDINATES), tasks)](
            *operands, *out, point.stride(0), size, **_lstm_options(operands[2], weights, p)
        )
        return tuple(out)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, v: Tensor | None, *given: Tensor | None) -> tuple[Tensor | None, ...]:
        operands = ctx.saved_tensors
        _, gradient, hidden, state, gates, weights, gate_weights = operands
        tasks, _, size = hidden.shape
        v = torch.zeros_like(gradient) if v is None else v.contiguous()
        later = any(each is not None for each in given)  # a last step gives its memory to no other
        memory = [
            torch.zeros_like(data) if each is None else each.contiguous()
            for each, data in zip(given, (hidden, state, gates), strict=True)
        ] if later else [hidden, state, gates]  # fmt: skip
        out = [torch.empty_like(data) for data in (gradient, hidden, state, gates)]
        share = blocks(blocks(size, _COORDINATES), max(1, _PROGRAMS // tasks)) * _COORDINATES
        parts = blocks(size, share)
        to_weights = weights.new_empty(tasks, parts, *weights.shape[1:])
        to_gates = weights.new_empty(tasks, parts, *gate_weights.shape)
        lstm_derivative_kernel[(parts, tasks)](
            *operands, v, *memory, *out, to_weights, to_gates, operands[0].stride(0), size, share,
            LATER=later, **_lstm_options(hidden, weights, ctx.p),
        )  # fmt: skip
        to_point, to_hidden, to_state, to_memory = out
        summed = to_weights.sum(1), to_gates.sum((0, 1))
        return to_point, None, to_hidden, to_state, to_memory, *summed, None


def _lstm_options(hidden: Tensor, weights: Tensor, p: float) -> dict[str, Any]:
    return {
        "P": p, "UNITS": hidden.shape[1], "ROWS": weights.shape[-1], "BLOCK": _COORDINATES,
        "PRECISION": dot_precision(hidden), "ACC": accumulator(hidden)[1],
        "num_warps": 8, "num_stages": 1,  # with fewer warps or more stages the derivative spills registers
    }  # fmt: skip


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def _tanh(x):
    """A series where 1 − e⁻²ˣ would cancel."""
    y = x * x
    series = 62 / 2835 + y * (-1382 / 155925 + y * (21844 / 6081075))
    series = x * (1 + y * (-1 / 3 + y * (2 / 15 + y * (-17 / 315 + y * series))))
    small = tl.exp(-2 * tl.abs(x))
    size = (1 - small) / (1 + small)
    return tl.where(tl.abs(x) < 0.2, series, tl.where(x < 0, -size, size))


@triton.jit
def _lstm_rows(g, hidden, at, inside, r, P: tl.constexpr, UNITS: tl.constexpr):
    """The rows (h, two of the gradient, 1) that the LSTM reads, `[ROWS, BLOCK]`."""
    least = tl.exp(tl.full(g.shape, -P, g.dtype))  # a constant would be in float32
    large = tl.log(tl.maximum(tl.abs(g), least)) / P
    small = tl.minimum(tl.maximum(g / least, -1.0), 1.0)
    rows = tl.load(hidden + at, mask=(r < UNITS)[:, None] & inside[None, :], other=0.0)
    rows = tl.where((r == UNITS)[:, None], large[None, :], rows)
    rows = tl.where((r == UNITS + 1)[:, None], small[None, :], rows)
    return tl.where((r == UNITS + 2)[:, None], 1.0, rows)


@triton.jit
def _raw(
    weights, which: tl.constexpr, rows, r, ROWS: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr
):
    w = tl.load(weights + which * ROWS * ROWS + r[:, None] * ROWS + r[None, :])
    return tl.dot(w, rows, input_precision=PRECISION, out_dtype=ACC)


@triton.jit
def _gate_rows(h, theta, gate, r, UNITS: tl.constexpr):
    """The rows (h, 1, θ, gate) that a gate reads, `[ROWS, BLOCK]`."""
    rows = tl.where((r == UNITS)[:, None], 1.0, h)
    rows = tl.where((r == UNITS + 1)[:, None], theta[None, :], rows)
    return tl.where((r == UNITS + 2)[:, None], gate[None, :], rows)


@triton.jit
def lstm_kernel(
    point, gradient, hidden, state, gates, weights, gate_weights, out, out_hidden, out_state, out_gates,
    point_stride, size, P: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    task = tl.program_id(1).to(tl.int64)
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = e < size
    r = tl.arange(0, ROWS)
    at = (task * UNITS + r)[:, None] * size + e[None, :]
    mask = (r < UNITS)[:, None] & inside[None, :]
    weights += task * 4 * ROWS * ROWS
    g = tl.load(gradient + task * size + e, mask=inside, other=0.0)
    rows = _lstm_rows(g, hidden, at, inside, r, P, UNITS)
    update = _sigmoid(_raw(weights, 0, rows, r, ROWS, PRECISION, ACC))
    forget = _sigmoid(_raw(weights, 1, rows, r, ROWS, PRECISION, ACC))
    candidate = _tanh(_raw(weights, 3, rows, r, ROWS, PRECISION, ACC))
    s = forget * tl.load(state + at, mask=mask, other=0.0) + update * candidate
    h = _sigmoid(_raw(weights, 2, rows, r, ROWS, PRECISION, ACC)) * _tanh(s)
    tl.store(out_state + at, s, mask=mask)
    tl.store(out_hidden + at, h, mask=mask)
    theta = tl.load(point + task * point_stride + e, mask=inside, other=0.0)
    of_gates = task * 2 * size + e
    keep_rows = _gate_rows(h, theta, tl.load(gates + of_gates, mask=inside, other=0.0), r, UNITS)
    take_rows = _gate_rows(h, theta, tl.load(gates + of_gates + size, mask=inside, other=0.0), r, UNITS)
    keep = _sigmoid(tl.sum(tl.load(gate_weights + r)[:, None] * keep_rows, 0))
    take = _sigmoid(tl.sum(tl.load(gate_weights + ROWS + r)[:, None] * take_rows, 0))
    tl.store(out_gates + of_gates, keep, mask=inside)
    tl.store(out_gates + of_gates + size, take, mask=inside)
    tl.store(out + task * size + e, keep * theta - take * g, mask=inside)


@triton.jit
def lstm_derivative_kernel(
    point, gradient, hidden, state, gates, weights, gate_weights, v, v_hidden, v_state, v_gates,
    to_point, to_hidden, to_state, to_gates, to_weights, to_gate_weights, point_stride, size, share,
    LATER: tl.constexpr, P: tl.constexpr, UNITS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Cotangents of point and memory from those of the next ones, `v`, and parts of those of the weights.

    Without LATER only the next point has one.
    """
    part = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    r = tl.arange(0, ROWS)
    real = (r < UNITS)[:, None]
    weights += task * 4 * ROWS * ROWS
    w_keep = tl.load(gate_weights + r)
    w_take = tl.load(gate_weights + ROWS + r)
    of_update = tl.zeros((ROWS, ROWS), ACC)
    of_forget = tl.zeros((ROWS, ROWS), ACC)
    of_output = tl.zeros((ROWS, ROWS), ACC)
    of_candidate = tl.zeros((ROWS, ROWS), ACC)
    of_keep = tl.zeros((ROWS,), ACC)
    of_take = tl.zeros((ROWS,), ACC)
    for first in range(part * share, tl.minimum(part * share + share, size), BLOCK):
        e = first + tl.arange(0, BLOCK)
        inside = e < size
        mask = real & inside[None, :]
        at = (task * UNITS + r)[:, None] * size + e[None, :]
        g = tl.load(gradient + task * size + e, mask=inside, other=0.0)
        rows = _lstm_rows(g, hidden, at, inside, r, P, UNITS)
        update = _sigmoid(_raw(weights, 0, rows, r, ROWS, PRECISION, ACC))
        forget = _sigmoid(_raw(weights, 1, rows, r, ROWS, PRECISION, ACC))
        output = _sigmoid(_raw(weights, 2, rows, r, ROWS, PRECISION, ACC))
        candidate = _tanh(_raw(weights, 3, rows, r, ROWS, PRECISION, ACC))
        before = tl.load(state + at, mask=mask, other=0.0)
        tanh_s = _tanh(forget * before + update * candidate)
        h = output * tanh_s
        theta = tl.load(point + task * point_stride + e, mask=inside, other=0.0)
        of_gates = task * 2 * size + e
        keep_rows = _gate_rows(h, theta, tl.load(gates + of_gates, mask=inside, other=0.0), r, UNITS)
        take_rows = _gate_rows(h, theta, tl.load(gates + of_gates + size, mask=inside, other=0.0), r, UNITS)
        keep = _sigmoid(tl.sum(w_keep[:, None] * keep_rows, 0))
        take = _sigmoid(tl.sum(w_take[:, None] * take_rows, 0))

        given = tl.load(v + task * size + e, mask=inside, other=0.0)
        d_keep = given * theta
        d_take = -given * g
        if LATER:
            d_keep += tl.load(v_gates + of_gates, mask=inside, other=0.0)
            d_take += tl.load(v_gates + of_gates + size, mask=inside, other=0.0)
        d_keep *= keep * (1 - keep)
        d_take *= take * (1 - take)
        of_keep += tl.sum(d_keep[None, :] * keep_rows, 1)
        of_take += tl.sum(d_take[None, :] * take_rows, 1)
        keep_point = tl.load(gate_weights + UNITS + 1)
        take_point = tl.load(gate_weights + ROWS + UNITS + 1)
        tl.store(
            to_point + task * size + e, given * keep + d_keep * keep_point + d_take * take_point, mask=inside
        )
        tl.store(to_gates + of_gates, d_keep * tl.load(gate_weights + UNITS + 2), mask=inside)
        tl.store(to_gates + of_gates + size, d_take * tl.load(gate_weights + ROWS + UNITS + 2), mask=inside)

        dh = w_keep[:, None] * d_keep[None, :] + w_take[:, None] * d_take[None, :]
        dh = tl.where(real, dh, 0.0)
        if LATER:
            dh += tl.load(v_hidden + at, mask=mask, other=0.0)
        ds = dh * output * (1 - tanh_s * tanh_s)
        if LATER:
            ds += tl.load(v_state + at, mask=mask, other=0.0)
        tl.store(to_state + at, ds * forget, mask=mask)
        d_output = dh * tanh_s * output * (1 - output)
        d_update = ds * candidate * update * (1 - update)
        d_forget = ds * before * forget * (1 - forget)
        d_candidate = ds * update * (1 - candidate * candidate)
        back = tl.trans(rows)
        of_update = tl.dot(d_update, back, of_update, input_precision=PRECISION, out_dtype=ACC)
        of_forget = tl.dot(d_forget, back, of_forget, input_precision=PRECISION, out_dtype=ACC)
        of_output = tl.dot(d_output, back, of_output, input_precision=PRECISION, out_dtype=ACC)
        of_candidate = tl.dot(d_candidate, back, of_candidate, input_precision=PRECISION, out_dtype=ACC)
        d_rows = _pulled(weights, 0, d_update, r, ROWS, PRECISION, ACC)
        d_rows += _pulled(weights, 1, d_forget, r, ROWS, PRECISION, ACC)
        d_rows += _pulled(weights, 2, d_output, r, ROWS, PRECISION, ACC)
        d_rows += _pulled(weights, 3, d_candidate, r, ROWS, PRECISION, ACC)
        tl.store(to_hidden + at, d_rows, mask=mask)
    place = task * tl.num_programs(0) + part
    to_weights += place * 4 * ROWS * ROWS + r[:, None] * ROWS + r[None, :]
    tl.store(to_weights, of_update)
    tl.store(to_weights + ROWS * ROWS, of_forget)
    tl.store(to_weights + 2 * ROWS * ROWS, of_output)
    tl.store(to_weights + 3 * ROWS * ROWS, of_candidate)
    tl.store(to_gate_weights + place * 2 * ROWS + r, of_keep)
    tl.store(to_gate_weights + (place * 2 + 1) * ROWS + r, of_take)


@triton.jit
def _pulled(
    weights, which: tl.constexpr, d, r, ROWS: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr
):
    w = tl.load(weights + which * ROWS * ROWS + r[None, :] * ROWS + r[:, None])
    return tl.dot(w, d, input_precision=PRECISION, out_dtype=ACC)
