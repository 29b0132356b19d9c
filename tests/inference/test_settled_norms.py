"""With settled norms an adapted network answers each picture by itself, as inductive evaluation does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pathaware.core.batch_norm import freeze_batch_norm
from pathaware.methods import METHODS
from tests.methods.checks import learner_of


def settled(name: str):
    learner, _, episodes = learner_of(name, "conv")
    x, y, query_x, _ = (part[0] for part in episodes.tensors())
    torch.manual_seed(1)
    return learner, freeze_batch_norm(learner.adapt(x, y), x), x, y, query_x


@pytest.mark.parametrize("name", METHODS)
def test_the_network_answers_as_the_learner_does_inductively(name):
    learner, network, x, y, query_x = settled(name)
    torch.manual_seed(1)
    with torch.no_grad():
        expected = learner.predictions_per_step(x[None], y[None], query_x[None], queries="alone").outputs[-1][
            0
        ]
        assert expected.dtype == torch.float64
        assert torch.allclose(network(query_x), expected, atol=1e-9)


@pytest.mark.parametrize("name", ["pamela", "prototypical", "mann", "relation", "warp-grad"])
def test_an_answer_does_not_depend_on_what_else_is_asked(name):
    _, network, _, _, query_x = settled(name)
    with torch.no_grad():
        together = network(query_x)
        alone = torch.cat([network(picture[None]) for picture in query_x])
    assert torch.allclose(together, alone, atol=1e-12)


def test_without_settled_norms_it_would_depend():
    learner, _, x, y, query_x = settled("pamela")
    network = learner.adapt(x, y)
    with torch.no_grad():
        assert (network(query_x)[:1] - network(query_x[:2])[:1]).abs().max() > 1e-4


def test_deeper_norms_are_settled_on_what_settled_ones_give_and_no_hook_stays():
    network = nn.Sequential(
        nn.BatchNorm1d(3, track_running_stats=False),
        nn.Linear(3, 4),
        nn.Tanh(),
        nn.BatchNorm1d(4, track_running_stats=False),
    )
    x = torch.randn(6, 3) * 5 + 2
    with torch.no_grad():
        expected = network(x)
        freeze_batch_norm(network, x)
        assert torch.allclose(network(x), expected, atol=1e-12)
        kept = network[3].running_mean.clone()
        network(torch.randn(9, 3))
    assert torch.equal(network[3].running_mean, kept)
    assert not any(m._forward_pre_hooks for m in network.modules())
