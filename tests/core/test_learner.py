"""`MetaLearner` from its user's point of view."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pathaware import Episodes, GradientDescent, MetaLearner, Pamela, Reptile, Unrolled, UsageError
from pathaware.models.mlp import mlp
from tests.conftest import distance, meta_gradient, regression_episodes, small_problem


def test_adapt_returns_an_independent_model_at_the_end_of_the_path():
    model, loss, episodes = small_problem("conv")
    learner = MetaLearner(model, GradientDescent(model, 3, rate=0.1), loss)
    before = learner.rule.layout.flatten(model).clone()
    adapted = learner.adapt(episodes.support_x[1], episodes.support_y[1])
    path = learner.path(episodes.support_x, episodes.support_y)
    expected = learner.predict(path.end, episodes.query_x)[1]
    assert type(adapted) is type(model)
    assert distance(adapted(episodes.query_x[1]), expected) < 1e-12
    assert torch.equal(learner.rule.layout.flatten(model), before)


def test_adaptation_keeps_no_graph():
    model, loss, episodes = small_problem("mlp")
    learner = MetaLearner(model, Pamela(model), loss)
    path = learner.path(episodes.support_x, episodes.support_y)
    assert len(path.points) == len(path.losses) == 6
    assert not any(t.requires_grad for t in (*path.points, *path.losses))


def test_the_learners_parameters_are_initialisation_and_rule_and_any_optimiser_trains_them():
    model, loss, episodes = small_problem("mlp")
    learner = MetaLearner(model, Pamela(model, rate=0.05), loss)
    optimizer = torch.optim.SGD(learner.parameters(), lr=0.01)
    first = learner.meta_loss(episodes)
    for _ in range(20):
        optimizer.zero_grad()
        learner.meta_loss(episodes).backward()
        optimizer.step()
    assert learner.meta_loss(episodes) < first
    assert {name.split(".")[0] for name, _ in learner.named_parameters()} == {"model", "rule"}


@pytest.mark.parametrize("estimator", [Unrolled(), Unrolled("first"), Reptile()])
def test_a_meta_batch_in_chunks_gives_the_same_gradient(estimator):
    model, loss, episodes = small_problem("mlp")
    learner = MetaLearner(model, GradientDescent(model, 3, rate=0.1), loss)

    def gradient(chunk: int | None) -> torch.Tensor:
        learner.zero_grad()
        for part in episodes.chunks(chunk):
            estimator.backward(learner, part, 1 / len(episodes))
        return torch.cat([p.grad.flatten() for p in learner.parameters()])

    assert distance(gradient(2), gradient(None)) < 1e-12


def test_reptile_pulls_the_initialisation_towards_where_descent_on_all_data_ends():
    model = mlp(1, (6,), 1)
    episodes = regression_episodes(tasks=2)
    learner = MetaLearner(model, GradientDescent(model, 3, rate=0.1), F.mse_loss)
    learner.zero_grad()
    Reptile().backward(learner, episodes, 1 / len(episodes))
    ends = []
    for sx, sy, qx, qy in zip(*episodes.tensors(), strict=True):
        copy = mlp(1, (6,), 1)
        copy.load_state_dict(model.state_dict())
        x, y = torch.cat([sx, qx]), torch.cat([sy, qy])
        for j in range(3):
            rows = torch.arange(j * len(sx), (j + 1) * len(sx)) % len(x)
            grads = torch.autograd.grad(F.mse_loss(copy(x[rows]), y[rows]), list(copy.parameters()))
            with torch.no_grad():
                for parameter, grad in zip(copy.parameters(), grads, strict=True):
                    parameter.sub_(0.1 * grad)
        ends.append(torch.cat([p.detach().flatten() for p in copy.parameters()]))
    initial = torch.cat([p.detach().flatten() for p in model.parameters()])
    pull = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert distance(pull, initial - torch.stack(ends).mean(0)) < 1e-12


def test_reptile_refuses_a_rule_that_learns():
    model, loss, episodes = small_problem("mlp")
    with pytest.raises(UsageError, match="Reptile learns a start only"):
        Reptile().backward(MetaLearner(model, Pamela(model), loss), episodes, 1.0)


def test_running_statistics_are_refused_with_a_remedy():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    with pytest.raises(
        UsageError, match=r"model: 1 keeps running statistics.*replace_all_batch_norm_modules_"
    ):
        MetaLearner(model, GradientDescent(model), F.mse_loss)


def test_episodes_of_different_lengths_are_refused():
    with pytest.raises(UsageError, match="must share their task axis"):
        Episodes(torch.zeros(2, 1), torch.zeros(2, 1), torch.zeros(3, 1), torch.zeros(3, 1))


def test_the_meta_gradient_does_not_depend_on_what_was_adapted_before():
    model, loss, episodes = small_problem("conv")
    learner = MetaLearner(model, GradientDescent(model, 2, rate=0.1), loss)
    first = meta_gradient(learner, episodes)
    learner.adapt(episodes.support_x[0], episodes.support_y[0])
    assert torch.equal(meta_gradient(learner, episodes), first)
