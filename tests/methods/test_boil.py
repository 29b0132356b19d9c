"""BOIL: MAML of everything but the last layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pathaware.core.errors import UsageError
from pathaware.methods.boil import Boil
from tests.methods.checks import estimated, learner_of


def test_the_head_is_the_same_for_all_tasks_and_the_body_is_not():
    learner, _, episodes = learner_of("boil", rate=0.1)
    path = learner.path(episodes.support_x, episodes.support_y)
    assert {name.split(".")[0] for name in path.parameters(-1)} == {"conv1", "norm1", "conv2", "norm2"}
    assert not torch.equal(path.end[0], path.end[1])


def test_the_head_is_learned_all_the_same():
    learner, outer, episodes = learner_of("boil", rate=0.1)
    estimated(learner, outer, episodes)
    assert all(parameter.grad.norm() > 1e-3 for parameter in learner.model.head.parameters())


def test_a_network_that_is_all_head_is_refused():
    with pytest.raises(UsageError, match="nothing can adapt"):
        Boil(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
