"""Steps of an LSTM that all coordinates of a network share, as in L2L and Meta-LSTM.

`lstm_cell` is a step with a hand-written derivative, and `Columns` lets coordinates with
equal states share them. `lstm_step` is a whole step of Meta-LSTM in one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pathaware.core.operations import fused
from pathaware.core.path import differentiable_once, full_precision, on_host

State = tuple[Tensor, Tensor]
"""The state of an LSTM: h and c."""

BLOCK = 64
"""The number of columns is a multiple of this: products of such sizes are faster, and few steps add some."""


def coordinatewise(layer: nn.Linear, values: Tensor) -> Tensor:
    """A linear layer applied to `values [T, in, D]` coordinate by coordinate: `[T, out, D]`.

    Contiguous coordinates are fast on CPUs.
    """
    return torch.baddbmm(layer.bias[:, None], layer.weight.expand(len(values), -1, -1), values)


@dataclass(frozen=True)
class Columns:
    """Which columns hold the states of D coordinates, for an LSTM that the coordinates of T tasks share.

    All coordinates of a task whose gradients have been zero so far have the same state, so it is computed
    once, in column 0. With ReLUs these are the weights of units that are zero at all support points. Any
    other coordinate has a column of its own, `place [T, D]`, of `width` columns; those that are free hold the
    state of column 0, too. Without `place` the coordinates are the columns: where control flow must not
    depend on gradients.
    """

    place: Tensor | None = None
    width: int = 0

    def after(self, gradient: Tensor) -> Columns:
        """Columns with more of them for the coordinates that have their first gradient `[T, D]` here."""
        if not on_host(gradient):
            return self
        place = torch.zeros_like(gradient, dtype=torch.long) if self.place is None else self.place
        first = (gradient != 0) & (place == 0)
        place = torch.where(first, place.amax(1, keepdim=True) + first.cumsum(1), place)
        blocks = int(place.max()) // BLOCK + 1
        return Columns(place, blocks * BLOCK)

    def gather(self, gradient: Tensor) -> Tensor:
        """A gradient `[T, D]` by columns, `[T, width]`."""
        if self.place is None:
            return gradient
        return gradient.new_zeros(len(gradient), self.width).scatter_(1, self.place, gradient)

    def spread(self, values: Tensor) -> Tensor:
        """Values of columns, `[T, n, width]`, by coordinates, `[T, n, D]`."""
        if self.place is None:
            return values
        return values.gather(2, self.place[:, None].expand(-1, values.shape[1], -1))


def lstm_cell(x: Tensor, state: State | None, weight: Tensor, bias: Tensor) -> State:
    """A step of an LSTM that all columns share: h and c `[T, H, width]` after inputs `[T, I, width]`.

    `weight [4·H, I + H]` and `bias [4·H]` or `[T, 4·H]` give the input, forget and output gates and the
    candidate. Without a state, before the first step, there is nothing to forget. If x has more columns than
    the state, these begin as column 0. Differentiable once. Autocast does not change the dtype,
    which is that of `weight`.
    """
    with full_precision(weight):
        before = None if state is None else (state[0].to(weight.dtype), state[1].to(weight.dtype))
        return _lstm_cell(x.to(weight.dtype), before, weight, bias.to(weight.dtype))


def _lstm_cell(x: Tensor, state: State | None, weight: Tensor, bias: Tensor) -> State:
    if state is None:
        units, inputs = len(weight) // 4, x.shape[1]
        take, _, *others = weight[:, :inputs].split(units)
        of_take, _, *of_others = bias.split(units, dim=-1)
        weight, bias = torch.cat([take, *others]), torch.cat([of_take, *of_others], dim=-1)
        h, c = _LSTMCell.apply(x, None, None, weight, bias)
        return h, c
    more = x.shape[2] - state[0].shape[2]
    before = (torch.cat([part, part[..., :1].expand(-1, -1, more)], 2) if more else part for part in state)
    h, c = _LSTMCell.apply(x, *before, weight, bias)
    return h, c


class _LSTMCell(torch.autograd.Function):
    """h and c after x. Without h and c before, the weights are those of x alone, less the forget gate.

    tanh v is computed as 2σ(2v) − 1: PyTorch's sigmoid is the faster one on a CPU.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor | None, c: Tensor | None, weight: Tensor, bias: Tensor
    ) -> State:
        tasks, inputs, width = x.shape
        units = len(weight) // (3 if h is None else 4)
        ones = x.new_ones(tasks, 1, width)  # the bias is a column of weights: to add it would take a pass
        rows = torch.cat([x, ones] if h is None else [x, h, ones], dim=1)
        whole = torch.cat([weight.expand(tasks, -1, -1), bias.expand(tasks, -1)[..., None]], dim=2)
        whole[:, -units:].mul_(2)
        gates = torch.bmm(whole, rows).sigmoid_()
        take, *forget, show, candidate = gates.split(units, dim=1)
        candidate.mul_(2).sub_(1)
        following = take * candidate
        if c is not None:
            following.addcmul_(*forget, c)
        tanh = (2 * following).sigmoid_().mul_(2).sub_(1)
        ctx.save_for_backward(rows, gates, c, tanh, weight)
        ctx.inputs, ctx.units, ctx.shared = inputs, units, bias.ndim == 1
        return show * tanh, following

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, to_h: Tensor, to_c: Tensor) -> Any:
        with full_precision(to_h):
            return _LSTMCell._backward(ctx, to_h, to_c)

    @staticmethod
    def _backward(ctx: Any, to_h: Tensor, to_c: Tensor) -> Any:
        rows, gates, c, tanh, weight = ctx.saved_tensors
        inputs, units, of_tanh = ctx.inputs, ctx.units, torch.ops.aten.tanh_backward
        take, *forget, show, candidate = gates.split(units, dim=1)
        raw = torch.empty_like(gates)  # cotangents, first of the gates, then of what σ and tanh are taken of
        to_take, *to_forget, to_show, to_candidate = raw.split(units, dim=1)
        to_c = of_tanh(to_h * show, tanh).add_(to_c)
        torch.mul(to_h, tanh, out=to_show)
        torch.mul(to_c, candidate, out=to_take)
        torch.mul(to_c, take, out=to_candidate)
        if c is not None:
            torch.mul(to_c, c, out=to_forget[0])
            to_c.mul_(*forget)
        to_open = raw[:, :-units]
        torch.ops.aten.sigmoid_backward.grad_input(to_open, gates[:, :-units], grad_input=to_open)
        of_tanh.grad_input(to_candidate, candidate, grad_input=to_candidate)
        to_weight = torch.bmm(rows[:, :-1], raw.mT).sum(0).mT
        to_bias = raw.sum((0, 2) if ctx.shared else 2)
        first = 0 if ctx.needs_input_grad[0] else inputs  # gradients, the inputs of a first layer, need none
        to_rows = torch.bmm(weight[:, first:].mT.expand(len(raw), -1, -1), raw)
        to_x, to_before = to_rows.tensor_split([inputs - first], dim=1)
        before = (None, None) if c is None else (to_before, to_c)
        return None if first else to_x, *before, to_weight, to_bias


LSTM_ROWS = 64
"""Hidden units, and three more, up to which the kernel of Meta-LSTM runs."""


def lstm_step(
    point: Tensor, gradient: Tensor, memory: tuple[Tensor, ...] | None, cell: tuple[Tensor, Tensor],
    gates: tuple[Tensor, ...], p: float,
) -> tuple[Tensor, tuple[Tensor, ...]] | None:  # fmt: skip
    """A step of Meta-LSTM by one kernel, or None where it cannot run: the next point `[T, D]` and memory.

    `memory` are `[T, H, D]` twice and `[T, 2, D]`, or None before the first step; `cell` are weights
    `[4·H, 2 + H]` and a bias `[T, 4·H]`; `gates` are weights `[2, H]`, and a bias and the weights of point
    and gates, `[2, 1]` each.
    """
    weight, bias = cell
    units = weight.shape[1] - 2
    rows = max(16, 1 << (units + 2).bit_length())
    kernel = fused("lstm_step", gradient) if rows <= LSTM_ROWS else None
    if kernel is None:
        return None
    if memory is None:
        tasks, size = gradient.shape
        memory = tuple(gradient.new_zeros(tasks, count, size) for count in (units, units, 2))
    shared = weight.roll(-2, 1).expand(len(bias), -1, -1)
    whole = torch.cat([shared, bias.unsqueeze(2)], dim=2).unflatten(1, (4, units))
    padded = torch.nn.functional.pad(whole, (0, rows - units - 3, 0, rows - units))
    of_gates = torch.nn.functional.pad(torch.cat(gates, dim=1), (0, rows - units - 3))
    following, *after = kernel(point, gradient, *memory, padded, of_gates, p)
    return following, tuple(after)
