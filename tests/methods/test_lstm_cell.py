"""An LSTM that coordinates share: its step and derivative, and the columns that hold its states."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pathaware import Layout
from pathaware.core.rule import Context
from pathaware.methods import lstm_cell as lstm
from pathaware.methods.l2l import LearnedOptimizer
from pathaware.methods.lstm_cell import BLOCK, Columns, lstm_cell
from pathaware.methods.meta_lstm import MetaLSTM
from tests.conftest import distance


def plain_cell(x, state, weight, bias):
    """The definition, one operation after another."""
    units = len(weight) // 4
    h, c = (x.new_zeros(len(x), units, x.shape[2]),) * 2 if state is None else state
    raw = weight @ torch.cat([x, h], 1) + bias[..., None]
    take, forget, show, candidate = raw.split(units, 1)
    c = forget.sigmoid() * c + take.sigmoid() * candidate.tanh()
    return show.sigmoid() * c.tanh(), c


@pytest.mark.parametrize("shape", [(12,), (2, 12)], ids=["one bias", "a bias per task"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("constant", [True, False])
def test_a_step_and_its_derivative_are_those_of_the_definition(shape, first, constant):
    x = torch.randn(2, 4, 5, requires_grad=not constant)
    state = None if first else tuple(torch.randn(2, 3, 5, requires_grad=True) for _ in range(2))
    weight, bias = torch.randn(12, 7, requires_grad=True), torch.randn(shape, requires_grad=True)
    wanted = [each for each in (x, *(state or ()), weight, bias) if each.requires_grad]
    of_h, of_c = torch.randn(2, 2, 3, 5)
    found = []
    for cell in (plain_cell, lstm_cell):
        h, c = cell(x, state, weight, bias)
        found.append([h, c, *torch.autograd.grad((of_h * h + of_c * c).sum(), wanted)])
    for expected, ours in zip(*found, strict=True):
        assert torch.allclose(ours, expected, rtol=0, atol=1e-13)


def test_a_coordinate_has_a_column_of_its_own_from_its_first_gradient_on():
    columns = Columns()
    for step in ([[0, 2, 0, 0], [0, 0, 0, 0]], [[3, 0, 0, 4], [0, 0, 5, 0]], [[6, 7, 0, 8], [0, 0, 0, 0]]):
        gradient = torch.tensor(step, dtype=torch.get_default_dtype())
        columns = columns.after(gradient)
        gathered = columns.gather(gradient)
        assert gathered.shape == (2, BLOCK)
        assert gathered[:, 0].tolist() == [0, 0]
        assert torch.equal(columns.spread(gathered[:, None])[:, 0], gradient)
    assert columns.place.tolist() == [[2, 1, 0, 3], [0, 0, 1, 0]]


@pytest.mark.parametrize("kind", [LearnedOptimizer, MetaLSTM])
def test_shared_columns_change_no_number(monkeypatch, kind):
    """Most coordinates have no gradient at first, and so many have one later that columns are added."""
    rule = kind(Layout.of(nn.Linear(29, 10)), 4, hidden=3)
    size = len(rule.layout)
    with torch.no_grad():
        for parameter in rule.parameters():
            parameter.normal_()
    begun = torch.rand(2, size) * 4
    gradients = [torch.randn(2, size) * (begun < j) for j in range(4)]  # none at all at first
    start, losses, weights = torch.randn(2, size, requires_grad=True), torch.rand(2), torch.randn(4, 2, size)
    found, widths = [], []
    for shared in (True, False):
        monkeypatch.setattr(lstm, "on_host", lambda values, shared=shared: shared)
        point, memory = rule.begin(start, Context(None, start, start))
        total, points = 0.0, [point]
        for j in range(4):
            point, memory = rule.advance(j, points, gradients[j], losses, memory)
            points.append(point)
            total = total + (weights[j] * point).sum()
            widths.append(memory[0].width)
        found.append([point, *torch.autograd.grad(total, [start, *rule.parameters()])])
    assert 0 < widths[0] < widths[1] < widths[3] < size
    assert widths[4:] == [0] * 4
    for ours, expected in zip(*found, strict=True):
        assert distance(ours, expected) < 1e-12
