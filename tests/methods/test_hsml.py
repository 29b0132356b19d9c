"""HSML: MAML from an initialisation that is gated by the clusters of a task."""

from __future__ import annotations

from collections import defaultdict

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware import MetaLearner
from pathaware.core.errors import UsageError
from pathaware.core.rule import Context
from pathaware.methods.hsml import Level, Reconstructing
from tests.conftest import distance
from tests.methods.checks import differences, learner_of, scattered

SMALL = {"size": 8, "clusters": 3, "groups": 2, "rate": 0.1, "steps": 2}


def starts(learner: MetaLearner, x: Tensor, y: Tensor) -> Tensor:
    theta = learner.rule.layout.flatten(learner.model).expand(len(x), -1)
    with torch.no_grad():
        return learner.rule.begin(theta, Context(learner, x, y))[0]


@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_its_meta_gradient_equals_finite_differences_in_every_part_of_the_hierarchy(kind):
    learner, outer, episodes = learner_of("hsml", kind, **SMALL, reconstruction=0.3)
    rule = scattered(learner, 0.3).rule
    outer.backward(learner, episodes, 1 / len(episodes))

    def loss() -> Tensor:
        pairs = rule.pairs(episodes.support_x, episodes.support_y)
        return learner.query_loss(episodes) + 0.15 * F.mse_loss(rule.decoder(rule.encoder(pairs)), pairs)

    parts = defaultdict(list)
    for name, parameter in learner.named_parameters():
        gradients, chosen = differences(nn.ParameterList([parameter]), loss, most=4)
        part = name.removeprefix("rule.").split(".")[0]  # the network, the encoder, the levels, …
        parts[part].append((parameter.grad.flatten()[chosen], gradients))
    for part, pairs in parts.items():
        found, gradients = (torch.cat(side) for side in zip(*pairs, strict=True))
        assert distance(found, gradients) < 1e-5, part


def test_gates_begin_near_the_value_that_is_set():
    learner, _, episodes = learner_of("hsml", "mlp", gate=0.8)
    theta = learner.rule.layout.flatten(learner.model)
    gates = starts(learner, episodes.support_x, episodes.support_y) / theta
    assert gates.mean().item() == pytest.approx(0.8, abs=0.03)


def test_a_level_is_what_its_equations_say():
    level, nodes = Level(3, 4, sigma=0.7), torch.randn(2, 5, 4)
    with torch.no_grad():
        level.bias.normal_()
    shares = level.assignments(nodes)
    assert torch.allclose(shares.sum(2), torch.ones(2, 5))
    above = level(nodes)
    for task in range(2):
        for k in range(3):
            total = torch.zeros(4)
            for node in range(5):
                reach = [torch.exp(-(((nodes[task, node] - c) / 0.7) ** 2).sum() / 2) for c in level.centres]
                assert torch.allclose(shares[task, node, k], reach[k] / sum(reach))
                view = torch.tanh(level.weight[k] @ nodes[task, node] + level.bias[k])
                total = total + reach[k] / sum(reach) * view
            assert torch.allclose(above[task, k], total)


@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_tasks_start_apart_but_not_by_the_order_of_their_examples(kind):
    learner, _, episodes = learner_of("hsml", kind, **SMALL)
    scattered(learner, 0.3)
    x, y = episodes.support_x, episodes.support_y
    found = starts(learner, x, y)
    assert distance(found[0], found[1]) > 1e-3
    order = torch.randperm(x.shape[1])
    assert torch.allclose(starts(learner, x[:, order], y[:, order]), found, rtol=1e-12)
    assert distance(starts(learner, x[:, order], y), found) > 1e-6  # labels belong to their examples


def test_without_a_share_the_reconstruction_teaches_nothing_but_leaves_the_losses():
    grads, losses = [], []
    for share in (0.0, 5.0):
        torch.manual_seed(3)
        learner, outer, episodes = learner_of("hsml", "mlp", **SMALL, reconstruction=share)
        losses.append(outer.backward(learner, episodes, 1.0))
        grads.append([p.grad.abs().sum() for p in learner.rule.decoder.parameters()])
    assert torch.equal(*losses)
    assert not any(grads[0])
    assert all(grads[1])


def test_what_has_no_autoencoder_is_refused():
    learner, _, episodes = learner_of("maml", "mlp")
    with pytest.raises(UsageError, match="autoencoder"):
        Reconstructing().backward(learner, episodes, 1.0)
