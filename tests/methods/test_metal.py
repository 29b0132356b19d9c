"""MeTAL: a learned, task-adaptive loss."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pathaware.core.rule import Context
from pathaware.methods.metal import AdaptiveLoss
from tests.methods.checks import learner_of, scattered


@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_its_meta_gradient_equals_finite_differences_in_every_tensor(kind):
    """Along one direction per tensor: the losses have many parameters, and each tensor must learn."""
    learner, outer, episodes = learner_of("metal", kind, rate=0.1, steps=2, guard=False)
    outer.backward(scattered(learner), episodes, 1 / len(episodes))
    for name, parameter in learner.named_parameters():
        direction, centre, sides = torch.randn_like(parameter), parameter.detach().clone(), []
        with torch.no_grad():
            for side in (1e-6, -1e-6):
                parameter.copy_(centre + side * direction)
                sides.append(outer.losses(learner, episodes, "none").mean())
            parameter.copy_(centre)
        gradient = (sides[0] - sides[1]) / 2e-6
        assert torch.isclose((parameter.grad * direction).sum(), gradient, rtol=1e-5, atol=1e-9), name
        if name.startswith("rule"):
            assert parameter.grad.any(), name


def test_the_outer_loss_is_that_of_support_set_and_queries_together():
    learner, outer, episodes = learner_of("metal", rate=0.1, steps=2)
    ends = learner.end(learner.path(*episodes.tensors()[:2], query_x=episodes.query_x))
    found = outer.losses(scattered(learner, 0.0), episodes)
    for task, (x, y, query_x, query_y) in enumerate(zip(*episodes.tensors(), strict=True)):
        end = ends[task : task + 1]
        outputs = torch.cat([learner.outputs_at(end, x[None])[0], learner.outputs_at(end, query_x[None])[0]])
        assert torch.allclose(found[task], F.cross_entropy(outputs, torch.cat([y, query_y])))


def test_the_outer_loss_of_the_queries_alone_is_a_setting():
    learner, outer, episodes = learner_of("metal", rate=0.1, steps=2, outer_support=False)
    losses = outer.backward(learner, episodes, 1.0)
    assert torch.equal(losses, learner.adapted_losses(episodes).detach())


def test_the_objective_equals_a_loop_over_tasks():
    learner, _, episodes = learner_of("metal", rate=0.1, steps=2)
    rule, model = scattered(learner, 0.3).rule, learner.model
    x, y, queries, _ = episodes.tensors()
    point = learner.rule.layout.flatten(model).expand(2, -1)
    losses, descended = rule.objective(1, point, Context(learner, x, y, queries))
    means = torch.stack([p.mean() for name, p in model.named_parameters() if "norm" not in name])

    def standard(values):
        return (values - values.mean()) / values.std()

    def adapted(part, features, state):
        predictions = part.adapter(state)
        own = []
        for i, phi in enumerate(part.loss.parameters()):
            gamma, delta = part.multipliers[i] * predictions[i], part.offsets[i] * predictions[4 + i]
            own.append((1 + gamma) * phi + delta)
        return F.linear(F.relu(F.linear(features, *own[:2])), *own[2:]).mean()

    for task in range(2):
        outputs, predictions = model(x[task]), model(queries[task])
        expected = F.cross_entropy(outputs, y[task])
        assert torch.allclose(losses[task], expected)
        state = torch.cat([expected[None], means])
        shown = torch.cat([state.repeat(len(outputs), 1), outputs, torch.eye(3)[y[task]]], 1)
        expected = expected + adapted(rule.support[1], standard(shown), standard(state))
        chances = predictions.softmax(1)
        doubts = (chances * chances.log()).sum(1, keepdim=True)
        seen = standard(torch.cat([means.repeat(len(predictions), 1), predictions, doubts], 1))
        expected = expected + adapted(rule.query[1], seen, seen.mean(0))
        assert torch.allclose(descended[task], expected)


def test_tasks_have_losses_of_their_own():
    loss = AdaptiveLoss(4, 3)
    with torch.no_grad():
        for parameter in loss.parameters():
            parameter.add_(torch.randn_like(parameter))
    features, states = torch.randn(1, 5, 4).expand(2, -1, -1), torch.randn(2, 3)
    own = loss(features, states)
    assert own.shape == (2, 5)
    assert not torch.allclose(own[0], own[1])
    with torch.no_grad():
        loss.multipliers.zero_()
        loss.offsets.zero_()
    assert torch.allclose(loss(features, states), loss.loss(features).squeeze(2)), "unadapted, they share one"


@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_a_task_ends_elsewhere_when_it_knows_its_queries(kind):
    learner, _, episodes = learner_of("metal", kind, rate=0.1, guard=False)
    scattered(learner)
    x, y, queries, _ = episodes.tensors()
    blind, seeing, other = (learner.path(x, y, query_x=q).end for q in (None, queries, queries + 1))
    assert not torch.allclose(blind, seeing)
    assert not torch.allclose(other, seeing)


def test_without_transduction_queries_change_nothing():
    learner, _, episodes = learner_of("metal", rate=0.1, transductive=False)
    scattered(learner)
    x, y, queries, _ = episodes.tensors()
    assert torch.equal(learner.path(x, y).end, learner.path(x, y, query_x=queries).end)


def test_every_step_has_a_loss_of_its_own_and_later_ones_use_the_last():
    learner, _, episodes = learner_of("metal", steps=2)
    scattered(learner)
    context = Context(learner, *episodes.tensors()[:3])
    point = learner.rule.layout.flatten(learner.model).expand(2, -1)
    first, second, third = (learner.rule.objective(j, point, context)[1] for j in range(3))
    assert torch.equal(second, third)
    assert not torch.allclose(first, second)
