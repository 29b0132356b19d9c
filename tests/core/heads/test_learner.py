"""Heads over one network for all tasks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pathaware.core.batch_norm import TaskStatistics
from pathaware.core.errors import UsageError
from tests.methods.checks import learner_of


def test_features_are_those_of_each_task_by_itself():
    learner, _, episodes = learner_of("prototypical")
    together = learner.embed(episodes.support_x)
    for task, x in enumerate(episodes.support_x):
        assert torch.allclose(together[task], learner.model(x), atol=1e-12)


def test_inductive_answers_do_not_depend_on_other_queries():
    learner, _, episodes = learner_of("prototypical")
    x, y, query_x, _ = episodes.tensors()
    all_of_them = learner.predictions_per_step(x, y, query_x, inductive=True).outputs[-1]
    alone = learner.predictions_per_step(x, y, query_x[:, :1], inductive=True).outputs[-1]
    assert torch.allclose(all_of_them[:, :1], alone, atol=1e-10)
    transductive = learner.predictions_per_step(x, y, query_x[:, :2]).outputs[-1]
    assert not torch.allclose(transductive[:, :1], alone, atol=1e-3)


def test_statistics_of_all_known_examples_are_those_of_plain_batch_norm():
    data, weight, bias = torch.randn(6, 4, 5, 5), torch.randn(4), torch.randn(4)
    expected = torch.cat([F.batch_norm(d, None, None, weight, bias, training=True) for d in data.split(3)])
    for count in (None, 3):
        with TaskStatistics(2, count):
            found = F.batch_norm(data, None, None, weight, bias, training=True)
        assert torch.allclose(found, expected, atol=1e-12)


def test_there_are_no_steps_to_choose():
    learner, _, episodes = learner_of("prototypical")
    with pytest.raises(UsageError, match="adapts at once"):
        learner.predictions_per_step(*episodes.tensors()[:3], steps=3)
