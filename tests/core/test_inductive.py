"""Predictions that depend on the support set and on nothing else."""

from __future__ import annotations

import pytest
import torch

from pathaware import GradientDescent, MetaLearner
from tests.conftest import distance, small_problem


def adapted(execution: str = "auto"):
    torch.manual_seed(0)
    model, loss, episodes = small_problem("conv")
    learner = MetaLearner(model, GradientDescent(model, 2, rate=0.1), loss, execution=execution)
    return learner, learner.path(episodes.support_x, episodes.support_y).end, episodes


@pytest.mark.parametrize("execution", ["loop", "vmap", "batched"])
def test_an_inductive_prediction_does_not_depend_on_the_other_queries(execution):
    learner, end, episodes = adapted(execution)
    together = learner.outputs_at(end, episodes.query_x, episodes.support_x)
    alone = learner.outputs_at(end, episodes.query_x[:, :1], episodes.support_x)
    assert distance(alone, together[:, :1]) < 1e-12
    transductive = learner.outputs_at(end, episodes.query_x)
    assert distance(learner.outputs_at(end, episodes.query_x[:, :5]), transductive[:, :5]) > 1e-3
    loop, end, _ = adapted("loop")
    assert distance(together, loop.outputs_at(end, episodes.query_x, episodes.support_x)) < 1e-12


def test_inductive_and_transductive_agree_on_the_support_set_itself():
    learner, end, episodes = adapted()
    x = episodes.support_x
    assert distance(learner.outputs_at(end, x, x), learner.outputs_at(end, x)) < 1e-10
