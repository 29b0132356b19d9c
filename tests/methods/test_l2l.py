"""L2L: an LSTM whose output is the update."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from pathaware import Layout
from pathaware.core.rule import Context
from pathaware.methods.l2l import LearnedOptimizer, shuffled
from pathaware.methods.meta_lstm import preprocessed
from tests.methods.checks import estimated, learner_of


def test_a_coordinate_is_pytorchs_lstm_of_its_own_gradients():
    """Three steps of all coordinates, with `nn.LSTMCell` as the reference."""
    rule = LearnedOptimizer(Layout.of(nn.Linear(2, 1)), 3, hidden=4, scale=0.5)
    with torch.no_grad():
        for parameter in rule.parameters():
            parameter.normal_()
    start, gradients, losses = torch.randn(2, 3), torch.randn(3, 2, 3), torch.rand(2)
    gradients[1, 0, 1] = 1e-6  # below e⁻ᵖ
    point, memory = rule.begin(start, Context(None, start, start))
    points = [point]
    for j in range(3):
        point, memory = rule.advance(j, points, gradients[j], losses, memory)
        points.append(point)

    order = [0, 1, 3, 2]  # ours are input, forget, output, candidate; theirs end in candidate, output
    references = []
    for cell in rule.cells:
        reference = nn.LSTMCell(cell.gates.in_features - 4, 4)
        weight = torch.cat([cell.gates.weight.chunk(4)[k] for k in order])
        bias = torch.cat([cell.gates.bias.chunk(4)[k] for k in order])
        with torch.no_grad():
            reference.weight_ih.copy_(weight[:, :-4])
            reference.weight_hh.copy_(weight[:, -4:])
            reference.bias_ih.copy_(bias)
            reference.bias_hh.zero_()
        references.append(reference)
    expected = start.flatten()
    states = [(torch.zeros(6, 4), torch.zeros(6, 4)) for _ in references]
    for j in range(3):
        values = preprocessed(gradients[j].flatten()[:, None]).squeeze(-1)
        for i, reference in enumerate(references):
            states[i] = reference(values, states[i])
            values = states[i][0]
        expected = expected + 0.5 * rule.output(values).squeeze(1)
    assert torch.allclose(point.flatten(), expected, atol=1e-12)


@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_with_saturated_gates_it_is_gradient_descent_by_signs(kind):
    """Gates open or shut, and a candidate that is ±1 by the gradient's sign."""
    learner, _, episodes = learner_of("l2l", kind, steps=2, hidden=1, layers=1, scale=0.01, guard=False)
    rule = learner.rule
    with torch.no_grad():
        for parameter in rule.parameters():
            parameter.zero_()
        rule.cells[0].gates.bias.copy_(torch.tensor([50.0, -50.0, 50.0, 0.0]))  # take, forget, show
        rule.cells[0].gates.weight[3, 1] = 50.0  # the sign of the gradient
        rule.output.weight.fill_(-1 / math.tanh(1))
    path = learner.path(episodes.support_x, episodes.support_y)
    for j in range(2):
        _, gradient = learner.gradient_at(path.points[j], episodes.support_x, episodes.support_y)
        large = gradient.abs() > math.exp(-10)
        assert large.any()
        expected = path.points[j] - 0.01 * gradient.sign()
        assert torch.allclose(path.points[j + 1][large], expected[large], atol=1e-10)


def test_a_random_initialisation_is_drawn_for_training_and_not_learned():
    learner, outer, episodes = learner_of("l2l", "mlp", initialisation="random")
    estimated(learner, outer, episodes)
    assert all(p.grad is None for p in learner.model.parameters())
    assert all(p.grad is not None for p in learner.rule.parameters())
    x, y = episodes.support_x, episodes.support_y
    start = learner.rule.layout.flatten(learner.model).expand(len(x), -1)
    first, again = (learner.path(x, y, order="first").points[0] for _ in range(2))
    assert not torch.equal(first, again)
    assert not torch.equal(first[0], first[1])
    assert not first.requires_grad
    assert torch.equal(learner.path(x, y).points[0], start)  # predictions are deterministic


def test_another_draw_has_the_values_of_each_tensor_in_another_order():
    layout = Layout.of(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)))
    point = torch.randn(5, len(layout))
    both = (each.split(layout.sizes, 1) for each in (point, shuffled(point, layout)))
    for before, after in zip(*both, strict=True):
        assert torch.equal(before.sort(1).values, after.sort(1).values)
        assert not torch.equal(before, after)


def test_a_learned_initialisation_is_learned():
    learner, outer, episodes = learner_of("l2l", "mlp")
    assert estimated(learner, outer, episodes)[: len(learner.rule.layout)].norm() > 1e-3
