"""iMAML with a Hessian-free inner loop."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from pathaware import MetaLearner
from pathaware.methods.imaml import LineSearchDescent
from pathaware.methods.imaml_hf import HessianFree
from tests.methods.checks import learner_of


def quadratic_problem(cg_steps: int, steps: int = 1) -> tuple[MetaLearner, torch.Tensor, torch.Tensor]:
    model = nn.Linear(3, 1)
    rule = HessianFree(model, steps, strength=0.7, cg_steps=cg_steps)
    return MetaLearner(model, rule, mse_loss, guard=False), torch.randn(4, 6, 3), torch.randn(4, 6, 1)


def test_on_a_quadratic_one_newton_step_reaches_the_minimum():
    learner, x, y = quadratic_problem(cg_steps=4)
    start, end = learner.path(x, y).points
    for task in range(4):
        rows = torch.cat([x[task], torch.ones(6, 1)], dim=1)
        matrix = 2 / 6 * rows.T @ rows + 0.7 * torch.eye(4)
        minimum = torch.linalg.solve(matrix, 0.7 * start[task] + 2 / 6 * rows.T @ y[task, :, 0])
        assert torch.allclose(end[task], minimum, atol=1e-9)


def test_with_one_conjugate_gradient_iteration_it_is_descent_with_a_line_search():
    learner, x, y = quadratic_problem(cg_steps=1, steps=3)
    other = MetaLearner(
        learner.model, LineSearchDescent(learner.model, 3, strength=0.7), mse_loss, guard=False
    )
    assert torch.allclose(learner.path(x, y).end, other.path(x, y).end, atol=1e-12)


def test_on_a_convex_loss_newton_steps_end_lower_than_as_many_gradient_steps():
    model = nn.Linear(4, 3)
    x, y = torch.randn(5, 12, 4) * torch.tensor([3.0, 1.0, 1.0, 0.3]), torch.randint(3, (5, 12))
    ends = []
    for rule in (HessianFree(model, 2, strength=0.1), LineSearchDescent(model, 2, strength=0.1)):
        learner = MetaLearner(model, rule, cross_entropy, guard=False)
        points = learner.path(x, y).points
        ends.append(learner.losses_at(points[-1], x, y) + 0.05 * (points[-1] - points[0]).square().sum(1))
    assert (ends[0] < ends[1] - 1e-3).all()


def test_without_positive_curvature_it_steps_along_the_gradient():
    model = nn.Linear(1, 1, bias=False)
    rule = HessianFree(model, 1, rate=0.3, strength=0.1)
    learner = MetaLearner(model, rule, lambda outputs, targets: -outputs.square().mean(), guard=False)
    points = learner.path(torch.ones(2, 1, 1), torch.ones(2, 1, 1)).points
    assert torch.allclose(points[1], points[0] * (1 + 0.3 * 2))


def test_one_setting_serves_both_uses_of_conjugate_gradients():
    learner, outer, _ = learner_of("imaml-hf", cg_steps=2)
    assert learner.rule.cg_steps == outer.cg_steps == 2
