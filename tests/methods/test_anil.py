"""ANIL: MAML of the last layer."""

from __future__ import annotations

import torch

from tests.methods.checks import learner_of


def test_the_body_is_the_same_for_all_tasks_and_the_head_is_not():
    learner, _, episodes = learner_of("anil", rate=0.1)
    path = learner.path(episodes.support_x, episodes.support_y)
    assert {name.split(".")[0] for name in path.parameters(-1)} == {"head"}
    assert not torch.equal(path.end[0], path.end[1])
