"""BOIL: MAML of everything but the last layer."""

from __future__ import annotations

import pytest
from torch import nn

from pathaware.core.errors import UsageError
from pathaware.methods.boil import Boil
from tests.methods.checks import estimated, learner_of


def test_the_head_is_learned_all_the_same():
    learner, outer, episodes = learner_of("boil", rate=0.1)
    estimated(learner, outer, episodes)
    assert all(parameter.grad.norm() > 1e-3 for parameter in learner.model.head.parameters())


def test_a_network_that_is_all_head_is_refused():
    with pytest.raises(UsageError, match="nothing can adapt"):
        Boil(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))
