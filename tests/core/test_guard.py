"""The divergence guard: it stops tasks that diverge and leaves all others unchanged."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pathaware import Episodes, GradientDescent, Layout, MetaLearner, Path
from tests.conftest import meta_gradient, regression_episodes, small_problem


def path(losses: list[list[float]]) -> Path:
    """Three tasks with one parameter; the point of step j is j."""
    points = [torch.full((len(losses[0]), 1), float(j)) for j in range(len(losses))]
    return Path(Layout.of(nn.Linear(1, 1, bias=False)), points, [torch.tensor(row) for row in losses])


def test_a_task_that_ends_above_its_initial_loss_returns_to_its_best_point():
    found = path([[4.0, 4.0, 4.0], [2.0, 5.0, 3.0], [1.0, 9.0, 3.5], [0.5, 80.0, 4.5]])
    assert found.guarded().flatten().tolist() == [3.0, 0.0, 1.0]
    assert found.reverted().tolist() == [False, True, True]


def test_a_loss_that_is_not_a_number_counts_as_worse():
    found = path([[4.0], [2.0], [float("nan")]])
    assert found.guarded().item() == 1.0


def test_stopping_early_considers_the_path_so_far_only():
    found = path([[4.0], [6.0], [1.0]])
    assert [found.guarded(j).item() for j in range(3)] == [0.0, 0.0, 2.0]


def test_a_task_that_has_diverged_takes_no_further_step():
    model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    episodes = regression_episodes(tasks=4)
    learner = MetaLearner(model, GradientDescent(model, 5, rate=5.0), F.mse_loss)
    taken = learner.path(episodes.support_x, episodes.support_y)
    away = torch.stack(taken.losses) > 10 * taken.losses[0]
    assert away.any(0).all()
    for task, first in enumerate(away.double().argmax(0).tolist()):
        assert all(torch.equal(p[task], taken.points[first][task]) for p in taken.points[first:])


def test_ordinary_tasks_are_unchanged_to_the_last_bit():
    model, loss, episodes = small_problem("conv")
    rule = GradientDescent(model, 3, rate=0.05)
    free, guarded = (MetaLearner(model, rule, loss, guard=g) for g in (False, True))
    taken = guarded.path(episodes.support_x, episodes.support_y)
    assert not taken.reverted().any()
    assert taken.guarded() is taken.end
    assert torch.equal(meta_gradient(free, episodes), meta_gradient(guarded, episodes))


def test_a_step_size_that_diverges_leaves_no_task_above_its_initial_loss():
    """With this step size every task diverges: above 1e20 without the guard, not at all with it."""
    model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    episodes = regression_episodes(tasks=50)
    rule = GradientDescent(model, 5, rate=5.0)
    x, y = episodes.support_x, episodes.support_y
    free, guarded = (MetaLearner(model, rule, F.mse_loss, guard=g) for g in (False, True))
    before = guarded.losses(guarded.path(x, y, steps=0).points[0], x, y)
    assert free.losses(free.end(free.path(x, y)), x, y).max() > 1e20
    assert (guarded.losses(guarded.end(guarded.path(x, y)), x, y) <= before).all()


@pytest.mark.parametrize("order", ["second", "first"])
def test_one_diverging_task_does_not_spoil_the_gradient_of_the_others(order):
    model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    calm = regression_episodes(tasks=3)
    wild = Episodes(*(torch.cat([t, 30 * t[:1]]) for t in calm.tensors()))
    learner = MetaLearner(model, GradientDescent(model, 5, rate=0.05), F.mse_loss)
    assert learner.path(wild.support_x, wild.support_y).reverted().tolist() == [False, False, False, True]
    free = MetaLearner(model, learner.rule, F.mse_loss, guard=False)
    guarded, unguarded = meta_gradient(learner, wild, order), meta_gradient(free, wild, order)
    assert guarded.isfinite().all()
    assert not unguarded.norm() < 1e6 * guarded.norm()  # very large, or NaN
