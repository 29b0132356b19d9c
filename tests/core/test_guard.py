"""The divergence guard: it stops tasks that diverge and leaves all others unchanged."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from pathaware import Episodes, GradientDescent, Layout, MetaLearner, MetaSGD, Pamela, Reptile, Trajectory
from pathaware.methods.alfa import Alfa
from pathaware.methods.meta_lstm import MetaLSTM
from tests.conftest import distance, meta_gradient, regression_episodes, small_problem


def path(losses: list[list[float]]) -> Trajectory:
    """Three tasks with one parameter; the point of step j is j."""
    points = [torch.full((len(losses[0]), 1), float(j)) for j in range(len(losses))]
    return Trajectory(Layout.of(nn.Linear(1, 1, bias=False)), points, [torch.tensor(row) for row in losses])


def test_a_task_that_ends_above_its_initial_loss_returns_to_its_best_point_so_far():
    found = path([[4.0, 4.0, 4.0], [2.0, 5.0, 3.0], [1.0, 9.0, 3.5], [0.5, 80.0, 4.5]])
    assert found.guarded().flatten().tolist() == [3.0, 0.0, 1.0]
    assert found.reverted().tolist() == [False, True, True]
    early = path([[4.0], [6.0], [1.0]])
    assert [early.guarded(j).item() for j in range(3)] == [0.0, 0.0, 2.0]
    assert path([[4.0], [2.0], [float("nan")]]).guarded().item() == 1.0


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
    before = guarded.losses_at(guarded.path(x, y, steps=0).points[0], x, y)
    assert free.losses_at(free.end(free.path(x, y)), x, y).max() > 1e20
    assert (guarded.losses_at(guarded.end(guarded.path(x, y)), x, y) <= before).all()


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


RULES = {
    "maml": GradientDescent,
    "meta-sgd": MetaSGD,
    "pamela": lambda m, steps: Pamela(m, steps, skip=1),
    "head only": lambda m, steps: GradientDescent(Layout.of(m, lambda name: name.startswith("2.")), steps),
    "alfa": Alfa,
    "meta-lstm": MetaLSTM,
}


WAYS = [("loop", False), ("loop", True), ("vmap", False), ("batched", False), ("batched", True)]


@pytest.mark.parametrize(("execution", "checkpoint"), WAYS)
@pytest.mark.parametrize("name", RULES)
def test_a_task_that_overflows_leaves_the_meta_gradient_of_the_others(name, execution, checkpoint):
    model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)).float()
    calm = regression_episodes(tasks=3).to(dtype=torch.float32)
    rule = RULES[name](model, steps=3).float()
    learner = MetaLearner(model, rule, F.mse_loss, execution=execution, checkpoint=checkpoint)
    alone = 3 * meta_gradient(learner, calm)
    for scale in (1e6, 1e9, 1e12, 1e25):
        wild = Episodes(*(torch.cat([t, t[:1]]) for t in calm.tensors()))
        wild.support_x[-1] *= scale
        assert learner.adapted_losses(wild).isfinite().all()
        found = 4 * meta_gradient(learner, wild)
        assert found.isfinite().all()
        end = learner.end(learner.path(wild.support_x, wild.support_y))[-1:]
        if torch.equal(end, rule.layout.flatten(model)[None]):
            # Its own part is the derivative of its query loss at θ₀.
            loss = functional_call(model, {}, wild.query_x[-1]) - wild.query_y[-1]
            parameters = list(learner.parameters())
            own = torch.autograd.grad(loss.square().mean(), parameters, materialize_grads=True)
            assert distance(found, alone + torch.cat([part.flatten() for part in own])) < 1e-5


@pytest.mark.parametrize("shift", [-5.0, -30.0])
def test_a_negative_initial_loss_does_not_stop_a_task(shift):
    model = nn.Linear(1, 1)
    x = torch.randn(2, 20, 1)
    rule = GradientDescent(model, 5, rate=0.1)
    plain, shifted = (
        MetaLearner(model, rule, lambda outputs, targets, by=by: F.mse_loss(outputs, targets) + by)
        for by in (0.0, shift)
    )
    assert torch.equal(shifted.path(x, 2 * x).end, plain.path(x, 2 * x).end)


def test_a_task_with_a_negative_initial_loss_still_stops_when_it_diverges():
    model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
    episodes = regression_episodes(tasks=4)
    loss = lambda outputs, targets: F.mse_loss(outputs, targets) - 30  # noqa: E731
    taken = MetaLearner(model, GradientDescent(model, 6, rate=5.0), loss).path(*episodes.tensors()[:2])
    assert (taken.losses[0] < 0).all()
    assert all(point.abs().max() < 1e30 for point in taken.points)
    assert torch.equal(taken.points[-1], taken.points[-2])


@pytest.mark.parametrize("branches", [True, False])
@pytest.mark.parametrize("scale", [1e3, 1e6])
def test_reptile_is_not_pulled_to_the_end_of_a_path_that_diverges(scale, branches, monkeypatch):
    if not branches:
        monkeypatch.setattr("pathaware.core.path.on_host", lambda values: False)
    model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1)).float()
    learner = MetaLearner(model, GradientDescent(model, 3, rate=0.05), F.mse_loss)
    calm = regression_episodes(tasks=2).to(dtype=torch.float32)
    expected = pulled(learner, calm)
    wild = Episodes(*(torch.cat([t, t[:1]]) for t in calm.tensors()))
    wild.support_x[-1] *= scale
    assert torch.allclose(pulled(learner, wild), expected)


def pulled(learner: MetaLearner, episodes: Episodes) -> torch.Tensor:
    """The meta-gradient of Reptile, summed over tasks."""
    learner.zero_grad()
    assert Reptile().backward(learner, episodes, 1.0).isfinite().all()
    return torch.cat([p.grad.flatten() for p in learner.model.parameters()])
