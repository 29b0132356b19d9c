"""Whole paths of ReLU networks as one program, against the sequential loop."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware import GradientDescent, MetaLearner, Pamela
from pathaware.core.episodes import Episodes
from pathaware.engine.handwritten.whole_path import _Workspace
from pathaware.models import mlp
from tests.conftest import RULES, distance, meta_gradient, regression_episodes

NETWORKS = {
    "one output": lambda: mlp(3, (6, 5), 1),
    "several outputs": lambda: mlp(3, (6,), 4),
    "narrow": lambda: mlp(3, (1, 2), 4),
    "no hidden layer": lambda: nn.Sequential(nn.Linear(3, 4)),
    "some without bias": lambda: nn.Sequential(
        nn.Linear(3, 5, bias=False), nn.ReLU(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4, bias=False)
    ),
}


def episodes_of(outputs: int, loss: object = F.mse_loss, tasks: int = 5) -> Episodes:
    def targets(count: int) -> Tensor:
        if loss is F.cross_entropy:
            return torch.randint(outputs, (tasks, count))
        return torch.randn(tasks, count, outputs)

    return Episodes(torch.randn(tasks, 5, 3), targets(5), torch.randn(tasks, 7, 3), targets(7))


def outcome(learner: MetaLearner, episodes: Episodes, order: str) -> tuple[Tensor, Tensor]:
    """Query losses, and the gradient of a sum in which every task has its own weight."""
    parameters = list(learner.parameters())
    losses = learner.adapted_losses(episodes, order)
    weighted = (losses * torch.linspace(0.5, 1, len(losses))).sum()
    found = torch.autograd.grad(weighted, parameters, allow_unused=True)
    whole = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
    return losses.detach(), torch.cat([g.flatten() for g in whole])


def check(model: nn.Module, rule: object, loss: object, episodes: Episodes, order: str, **settings) -> None:
    ours = MetaLearner(model, rule, loss, **settings)
    loop = MetaLearner(model, rule, loss, execution="loop", guard=ours.guard)
    losses, gradient = outcome(ours, episodes, order)
    losses_, gradient_ = outcome(loop, episodes, order)
    assert distance(losses, losses_) < 1e-10
    assert distance(gradient, gradient_) < 1e-10


@pytest.fixture
def runs(monkeypatch):
    """What the program has run: its workspaces after the forward pass, None where it has declined."""
    found: list[_Workspace | None] = []
    run = _Workspace.run

    def noted(self, *arguments):
        losses = run(self, *arguments)
        found.append(None if losses is None else self)
        return losses

    monkeypatch.setattr(_Workspace, "run", noted)
    return found


@pytest.mark.parametrize("order", ["second", "first"])
@pytest.mark.parametrize(
    ("network", "loss"),
    [*((network, F.mse_loss) for network in NETWORKS), ("several outputs", F.cross_entropy)],
)
@pytest.mark.parametrize("rule", RULES)
def test_meta_gradients_are_those_of_the_loop(rule, network, loss, order, runs):
    model = NETWORKS[network]()
    outputs = model[-1].out_features
    rule = RULES[rule](model)
    with torch.no_grad():
        for parameter in rule.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    check(model, rule, loss, episodes_of(outputs, loss), order)
    assert len(runs) == 1


@pytest.mark.parametrize("order", ["second", "first"])
def test_meta_gradients_without_the_guard_are_those_of_the_loop(order, runs):
    model = mlp(3, (6, 5), 1)
    rule = Pamela(model, 5, rate=0.1, q_start=0.5, skip=2)
    check(model, rule, F.mse_loss, episodes_of(1), order, guard=False)
    assert len(runs) == 1


@pytest.mark.parametrize("order", ["second", "first"])
@pytest.mark.parametrize("rate", [0.6, 1.0, 3.0, 30.0, 1e80])
@pytest.mark.parametrize("rule", [GradientDescent, Pamela])
def test_the_guard_reverts_the_tasks_that_it_reverts_in_the_loop(rule, rate, order, runs):
    """From tasks that end a little above their first loss to those that overflow."""
    for seed in range(5):
        torch.manual_seed(seed)
        model = mlp(3, (6, 5), 1)
        start = {"q_start": 1.0} if rule is Pamela else {}
        check(model, rule(model, 5, rate=rate, **start), F.mse_loss, episodes_of(1, tasks=8), order)
    reverted = [len(run.reverted) for run in runs]
    assert any(reverted)
    assert all(run.finite for run in runs) is (rate < 1e80)
    if rate <= 1:
        assert any(0 < count < 8 for count in reverted)


def test_a_task_that_cannot_start_is_left_to_the_inner_loop(runs):
    model = mlp(3, (6, 5), 1)
    episodes = episodes_of(1)
    episodes.support_y[2] = 1e200
    check(model, GradientDescent(model, 3), F.mse_loss, episodes, "second")
    assert runs == [None]


def test_a_rule_that_changes_the_steps_is_not_taken_for_its_base_class(runs):
    class Halved(GradientDescent):
        def step(self, j, points, gradient):
            return super().step(j, points, gradient / 2)

    model = mlp(3, (6,), 1)
    check(model, Halved(model, 3, rate=0.1), F.mse_loss, episodes_of(1), "second")
    assert runs == []


def test_losses_of_two_batches_can_be_alive_at_once():
    model = mlp()
    learner = MetaLearner(model, Pamela(model, 3, rate=0.1, q_start=0.5, skip=1), F.mse_loss)
    first, second = regression_episodes(), regression_episodes()
    expected = meta_gradient(learner, first) + meta_gradient(learner, second)
    losses = [learner.meta_loss(each) for each in (first, second)]
    for loss in losses:
        loss.backward(retain_graph=True)
    assert distance(torch.cat([p.grad.flatten() for p in learner.parameters()]), expected) < 1e-12
    for loss in losses:
        loss.backward()
    assert distance(torch.cat([p.grad.flatten() for p in learner.parameters()]), 2 * expected) < 1e-12


def test_memory_is_used_again_and_not_copied():
    model = mlp()
    learner = MetaLearner(model, GradientDescent(model, 3), F.mse_loss)
    for _ in range(3):
        meta_gradient(learner, regression_episodes())
    (free,) = learner.execution.path_program.free.values()
    assert len(free) == 1
    twin = copy.deepcopy(learner)
    assert twin.execution.path_program.free == {}
    episodes = regression_episodes()
    assert torch.equal(meta_gradient(twin, episodes), meta_gradient(learner, episodes))
