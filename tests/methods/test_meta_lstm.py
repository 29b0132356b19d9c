"""Meta-LSTM: an LSTM whose cell state is the parameters."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from pathaware import GradientDescent, Layout, MetaLearner
from pathaware.methods.meta_lstm import MetaLSTM, preprocessed
from tests.conftest import distance, meta_gradient
from tests.methods.checks import learner_of


def fixed_gates(rule: MetaLSTM, keep: float, take: float) -> None:
    """Make the gates constant, with these biases."""
    with torch.no_grad():
        for parameter in rule.parameters():
            parameter.zero_()
        rule.gates.bias.copy_(torch.tensor([keep, take]))


@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_with_fixed_gates_it_is_gradient_descent(kind):
    learner, _, episodes = learner_of("meta-lstm", kind, steps=4)
    fixed_gates(learner.rule, math.inf, -2.0)
    rate = 1 / (1 + math.exp(2.0))
    plain = MetaLearner(learner.model, GradientDescent(learner.model, 4, rate=rate), learner.loss)
    ends = [each.path(episodes.support_x, episodes.support_y).end for each in (learner, plain)]
    assert torch.allclose(*ends, rtol=0, atol=1e-14)
    ours, theirs = (meta_gradient(each, episodes, "first") for each in (learner, plain))
    assert distance(ours[: len(theirs)], theirs) < 1e-12


def test_it_starts_close_to_gradient_descent_with_the_rate_that_is_set():
    learner, _, episodes = learner_of("meta-lstm", "mlp", rate=0.2, keep=0.9, steps=1)
    start, end = learner.path(episodes.support_x, episodes.support_y).points
    _, gradient = learner.gradient_at(start, episodes.support_x, episodes.support_y)
    assert torch.allclose(end, 0.9 * start - 0.2 * gradient, atol=0.02)
    assert not torch.equal(end, 0.9 * start - 0.2 * gradient)


def test_a_coordinate_follows_the_equations_of_the_paper():
    """Two steps of one coordinate among several tasks and coordinates, in plain arithmetic."""
    rule = MetaLSTM(Layout.of(nn.Linear(2, 1)), 2, hidden=3)
    with torch.no_grad():
        for parameter in rule.parameters():
            parameter.normal_()
    start, gradients, losses = torch.randn(2, 3), torch.randn(2, 2, 3), torch.rand(2, 2)
    point, memory = rule.begin(start, None)
    for j in range(2):
        point, memory = rule.advance(j, [point], gradients[j], losses[j], memory)

    def sigmoid(v: float) -> float:
        return 1 / (1 + math.exp(-v))

    def linear(layer: nn.Linear, values: list[float]) -> list[float]:
        rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
        return [sum(w * v for w, v in zip(row, values, strict=True)) + bias for row, bias in rows]

    theta, hidden, state, gates = start[1, 2].item(), [0.0] * 3, [0.0] * 3, [0.0] * 2
    of_point, of_gates = rule.of_point.flatten().tolist(), rule.of_gates.flatten().tolist()
    for j in range(2):
        g, loss = gradients[j, 1, 2].item(), losses[j, 1].item()
        inputs = [math.log(loss) / 10, 1.0, math.log(abs(g)) / 10, math.copysign(1, g), *hidden]
        raw = linear(rule.cell, inputs)
        take, forget, show = ([sigmoid(v) for v in raw[k : k + 3]] for k in (0, 3, 6))
        state = [forget[k] * state[k] + take[k] * math.tanh(raw[9 + k]) for k in range(3)]
        hidden = [show[k] * math.tanh(state[k]) for k in range(3)]
        raw = linear(rule.gates, hidden)
        gates = [sigmoid(raw[k] + of_point[k] * theta + of_gates[k] * gates[k]) for k in range(2)]
        theta = gates[0] * theta - gates[1] * g
    assert point[1, 2].item() == pytest.approx(theta, rel=1e-12)


def test_the_second_step_depends_on_what_the_first_has_seen():
    rule = MetaLSTM(Layout.of(nn.Linear(2, 1)), 2)
    with torch.no_grad():
        for parameter in rule.parameters():
            parameter.normal_()
    point, losses = torch.randn(1, 3), torch.ones(1)
    _, nothing = rule.begin(point, None)
    ends = []
    for first in (0.1, -3.0):
        _, memory = rule.advance(0, [point], torch.full((1, 3), first), losses, nothing)
        ends.append(rule.advance(1, [point], torch.ones(1, 3), losses, memory)[0])
    assert (ends[0] - ends[1]).abs().min() > 1e-3


def test_preprocessing_is_the_papers():
    for value in (3.0, -0.02, 1e-4, -1e-4, 4.6e-5, 4.5e-5, -1e-6, 0.0):
        if abs(value) >= math.exp(-10):
            expected = [math.log(abs(value)) / 10, math.copysign(1, value)]
        else:
            expected = [-1, math.exp(10) * value]
        assert preprocessed(torch.tensor([value]))[0].tolist() == pytest.approx(expected, rel=1e-12)
