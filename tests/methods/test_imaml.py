"""iMAML: the implicit gradient of a regularised minimum."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from pathaware import Episodes, GradientDescent, Layout, MetaLearner
from pathaware.core import path
from pathaware.core.errors import UsageError
from pathaware.core.meta_gradient import MetaGradient, Unrolled
from pathaware.methods.imaml import Implicit, LineSearchDescent
from pathaware.methods.second_order import backtrack, conjugate_gradients
from tests.conftest import distance, small_problem
from tests.methods.checks import estimated, learner_of, most_kept, scattered


def positive(tasks: int, size: int) -> torch.Tensor:
    roots = torch.randn(tasks, size, size)
    return roots @ roots.transpose(1, 2) + torch.eye(size)


def linear_problem(strength: float, steps: int, rate: float = 0.2) -> tuple[MetaLearner, Episodes]:
    model = nn.Linear(3, 1)
    learner = MetaLearner(model, LineSearchDescent(model, steps, rate=rate, strength=strength), mse_loss)
    return learner, Episodes(*(torch.randn(4, n, d) for n, d in ((6, 3), (6, 1), (7, 3), (7, 1))))


def test_conjugate_gradients_solve_every_task_s_own_system():
    a, b = positive(4, 6), torch.randn(4, 6)
    found = conjugate_gradients(lambda v: (a @ v[..., None])[..., 0], b, 6)
    assert torch.allclose(found, torch.linalg.solve(a, b), atol=1e-9)


def test_each_step_takes_the_best_point_of_a_larger_krylov_space():
    a, b = positive(1, 6), torch.randn(1, 6)
    found = conjugate_gradients(lambda v: v @ a[0], b, 2)[0]
    space = torch.stack([b[0], a[0] @ b[0]], dim=1)
    best = space @ torch.linalg.solve(space.T @ a[0] @ space, space.T @ b[0])
    assert torch.allclose(found, best, atol=1e-9)


def test_tasks_that_are_solved_or_not_positive_stay_where_they_are():
    scales = torch.tensor([[2.0], [0.0], [-1.0], [2.0]])
    b = torch.tensor([[3.0, 4.0]]).repeat(4, 1)
    b[3] = 0
    found = conjugate_gradients(lambda v: scales * v, b, 5)
    assert torch.equal(found, torch.tensor([[1.5, 2.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))


def test_without_positive_curvature_the_meta_gradient_is_the_query_gradient():
    """As in FOMAML; zero would leave the initialisation there for ever."""
    model = nn.Linear(1, 1, bias=False)
    learner = MetaLearner(
        model, LineSearchDescent(model, 1, rate=0.1, strength=0.1), lambda y, _: -20 * y.square().mean()
    )
    episodes = Episodes(*(torch.ones(2, 1, 1) for _ in range(4)))
    learner.zero_grad()
    Implicit(strength=0.1).backward(learner, episodes, 0.5)
    end = learner.path(episodes.support_x, episodes.support_y).end
    assert torch.allclose(model.weight.grad, -40 * end.mean() / 2)


def test_the_rule_descends_the_loss_and_the_distance_from_the_initialisation():
    learner, _, episodes = learner_of("imaml", "mlp", steps=4, strength=0.7, guard=False)
    x, y = episodes.support_x, episodes.support_y
    points = learner.path(x, y).points
    here = points[2].clone().requires_grad_()
    objective = learner.losses_at(here, x, y) + 0.35 * (here - points[0]).square().sum(1)
    (gradient,) = torch.autograd.grad(objective.sum(), here)
    moved = points[2] - points[3]
    sizes = (moved * gradient).sum(1, keepdim=True) / gradient.square().sum(1, keepdim=True)
    assert torch.allclose(moved, sizes * gradient, atol=1e-12)
    assert (sizes > 0).all()


def test_no_step_is_capped_at_the_rate():
    learner, episodes = linear_problem(0.7, steps=1, rate=1e-6)
    points = learner.path(episodes.support_x, episodes.support_y).points
    other, _ = linear_problem(0.7, steps=1, rate=1e6)
    other.load_state_dict(learner.state_dict())
    assert torch.equal(points[1], other.path(episodes.support_x, episodes.support_y).points[1])
    assert (points[1] - points[0]).norm() > 1e-2


def test_a_line_search_halves_steps_until_the_objective_does_not_grow():
    def objective(point):  # least at 1
        return (point - 1).square().sum(1)

    start, sizes = torch.zeros(4, 1), torch.tensor([[1.0], [2.0], [7.0], [99.0]])
    found = backtrack(objective, objective(start), start, -torch.ones(4, 1), sizes)
    assert found.flatten().tolist() == [1.0, 2.0, 1.75, 0.0]
    with mock.patch.object(path, "on_host", return_value=False):  # as on a GPU, all at once
        assert torch.equal(backtrack(objective, objective(start), start, -torch.ones(4, 1), sizes), found)


@pytest.mark.parametrize("name", ["imaml", "imaml-hf"])
@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_a_search_that_tries_all_sizes_at_once_takes_the_same_steps(name, kind):
    learner, outer, episodes = learner_of(name, kind, steps=3, rate=100.0)
    expected = estimated(scattered(learner, 0.5), outer, episodes)
    points = learner.path(episodes.support_x, episodes.support_y).points
    with mock.patch.object(path, "on_host", return_value=False):
        found = learner.path(episodes.support_x, episodes.support_y).points
        assert distance(torch.stack(found), torch.stack(points)) < 1e-10
        assert distance(estimated(learner, outer, episodes), expected) < 1e-10


def test_a_step_computes_its_gradient_once():
    learner, _, episodes = learner_of("imaml", steps=3)
    counted = mock.Mock(side_effect=learner.execution.gradient)
    with mock.patch.object(learner.execution, "gradient", counted):
        learner.path(episodes.support_x, episodes.support_y)
    assert counted.call_count == 3


@pytest.mark.parametrize("name", ["imaml", "imaml-hf"])
def test_no_step_raises_the_regularised_loss(name):
    torch.manual_seed(3)
    learner, _, episodes = learner_of(name, "conv", steps=6, rate=100.0, guard=False)
    x, y = episodes.support_x, episodes.support_y
    points = learner.path(x, y).points
    half = learner.rule.strength / 2
    objective = [learner.losses_at(p, x, y) + half * (p - points[0]).square().sum(1) for p in points]
    for before, after in pairwise(objective):
        assert (after <= before + 1e-12).all()


def test_no_step_goes_beyond_the_minimum_along_it():
    """On a quadratic with an exact line search, successive gradients are orthogonal."""
    learner, episodes = linear_problem(0.7, steps=4, rate=50.0)
    x, y = episodes.support_x, episodes.support_y
    points = learner.path(x, y).points
    gradients = [learner.gradient_at(p, x, y)[1] + 0.7 * (p - points[0]) for p in points]
    for before, after in pairwise(gradients):
        assert torch.allclose((before * after).sum(1), torch.zeros(4), atol=1e-12)
        assert (before.norm(dim=1) > 1e-3).all()


def test_where_the_loss_is_concave_the_search_starts_at_the_rate():
    model = nn.Linear(1, 1, bias=False)
    rule = LineSearchDescent(model, 1, rate=0.3, strength=0.1)
    learner = MetaLearner(model, rule, lambda outputs, targets: -outputs.square().mean(), guard=False)
    points = learner.path(torch.ones(2, 1, 1), torch.ones(2, 1, 1)).points
    assert torch.allclose(points[1], points[0] * (1 + 0.3 * 2))


def test_on_a_quadratic_it_equals_the_derivative_of_the_closed_solution():
    """θ* = (H + λ)⁻¹ (λ θ₀ + c), so the meta-gradient is λ (H + λ)⁻¹ ∇L_query(θ*), by dense algebra."""
    strength = 0.8
    learner, episodes = linear_problem(strength, steps=150)
    found = estimated(learner, Implicit(strength=strength, cg_steps=4, damping=0.0, cg_damping=0.0), episodes)
    start = learner.rule.layout.flatten(learner.model).detach()
    expected = torch.zeros_like(start)
    for x, y, query_x, query_y in zip(*episodes.tensors(), strict=True):
        rows, query_rows = (torch.cat([part, torch.ones(len(part), 1)], dim=1) for part in (x, query_x))
        a = 2 / len(rows) * rows.T @ rows + strength * torch.eye(4)
        minimum = torch.linalg.solve(a, strength * start + 2 / len(rows) * rows.T @ y[:, 0])
        pull = 2 / len(query_rows) * query_rows.T @ (query_rows @ minimum - query_y[:, 0])
        expected += strength * torch.linalg.solve(a, pull) / len(episodes)
    assert distance(found, expected) < 1e-8


def test_damping_adds_to_the_strength_that_curvature_is_divided_by():
    learner, episodes = linear_problem(1.0, steps=5)
    damped = estimated(learner, Implicit(strength=1.0, damping=2.0, cg_steps=4), episodes)
    assert (
        distance(damped, estimated(learner, Implicit(strength=3.0, damping=0.0, cg_steps=4), episodes))
        < 1e-12
    )


def test_its_matrix_is_that_of_the_authors_program():
    """(1 + 1) I + H / (λ + 10), by dense algebra at the end of the path."""
    learner, episodes = linear_problem(0.5, steps=3)
    found = estimated(learner, Implicit(strength=0.5, cg_steps=4), episodes)
    ends = learner.end(learner.path(episodes.support_x, episodes.support_y))
    _, pulls = learner.gradient_at(ends, episodes.query_x, episodes.query_y)
    expected = torch.zeros(4)
    for x, pull in zip(episodes.support_x, pulls, strict=True):
        rows = torch.cat([x, torch.ones(len(x), 1)], dim=1)
        matrix = 2 * torch.eye(4) + 2 / len(rows) * rows.T @ rows / 10.5
        expected += torch.linalg.solve(matrix, pull) / len(episodes)
    assert distance(found, expected) < 1e-8


def smooth_problem(kind: str, steps: int) -> tuple[MetaLearner, MetaGradient, Episodes]:
    """Smooth networks: at a kink a path does not converge, and there is no derivative."""
    _, loss, episodes = small_problem(kind)
    layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, track_running_stats=False), nn.Tanh(), nn.Flatten()]
    last = nn.Linear(3 * 36, 3)
    if kind == "mlp":
        layers, last = [nn.Linear(1, 6), nn.Tanh()], nn.Linear(6, 1)
    model = nn.Sequential(*layers, last)
    learner = MetaLearner(model, LineSearchDescent(model, steps, rate=0.1, strength=3.0), loss)
    return scattered(learner), Implicit(strength=3.0, cg_steps=40, damping=0.0, cg_damping=0.0), episodes


@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_where_the_path_has_converged_it_equals_the_unrolled_meta_gradient(kind):
    learner, outer, episodes = smooth_problem(kind, 80)
    assert distance(estimated(learner, outer, episodes), estimated(learner, Unrolled(), episodes)) < 1e-6


def test_where_the_path_has_not_converged_it_does_not():
    learner, outer, episodes = smooth_problem("mlp", 3)
    assert distance(estimated(learner, outer, episodes), estimated(learner, Unrolled(), episodes)) > 1e-3


def test_a_strong_regulariser_leaves_the_first_order_gradient_at_the_initialisation():
    learner, _, episodes = learner_of("imaml", "conv", steps=3, strength=1e8)
    found = estimated(learner, Implicit(strength=1e8, cg_damping=0.0), episodes)
    plain = MetaLearner(learner.model, GradientDescent(learner.model, 1, rate=0.0), learner.loss)
    assert distance(found, estimated(plain, Unrolled("first"), episodes)) < 1e-6


@pytest.mark.parametrize("execution", ["batched", "vmap"])
def test_more_steps_keep_no_more_of_the_network(execution):
    def most(outer: MetaGradient, steps: int) -> int:
        learner, _, episodes = learner_of("imaml", "conv", steps=steps, execution=execution)
        return most_kept(learner, outer, episodes)

    assert most(Implicit(), 20) == most(Implicit(), 2) > 0
    assert most(Unrolled(), 20) > 2 * most(Unrolled(), 2)


def test_what_does_not_adapt_cannot_be_learned():
    learner, outer, episodes = learner_of("imaml")
    head = Layout.of(learner.model, adapted=lambda name: name.startswith("head."))
    part = MetaLearner(learner.model, LineSearchDescent(head), learner.loss)
    with pytest.raises(UsageError, match="an initialisation only"):
        outer.backward(part, episodes, 1.0)
