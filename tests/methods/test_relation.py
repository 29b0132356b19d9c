"""Relation networks."""

from __future__ import annotations

import pytest
import torch

from pathaware.core.errors import UsageError
from pathaware.methods import get_method
from tests.conftest import small_problem
from tests.methods.checks import error_of_meta_gradient, learner_of, scattered


def test_its_gradient_equals_finite_differences():
    learner, outer, episodes = learner_of("relation")
    assert error_of_meta_gradient(scattered(learner), outer, episodes) < 1e-6


def test_its_scores_are_those_of_every_pair_laid_out_one_after_another():
    learner, _, episodes = learner_of("relation")
    head = scattered(learner).head
    support, queries = learner.embed(episodes.support_x), learner.embed(episodes.query_x)
    predictions = learner.predictions_per_step(*episodes.tensors()[:3]).outputs[-1]
    for task, labels in enumerate(episodes.support_y):
        for i, query in enumerate(queries[task]):
            for k in range(3):
                pair = torch.cat([support[task][labels == k].mean(0), query])
                score = torch.sigmoid(head.compare(head.join(pair)))
                assert torch.allclose(predictions[task, i, k], score[0])


def test_its_loss_is_the_squared_error_of_every_score():
    learner, _, episodes = learner_of("relation")
    predictions = scattered(learner).predictions_per_step(*episodes.tensors()[:3]).outputs[-1]
    losses = learner.task_losses(episodes)
    for task, labels in enumerate(episodes.query_y):
        errors = [
            (predictions[task, i, k] - float(k == label)) ** 2
            for i, label in enumerate(labels)
            for k in range(3)
        ]
        assert torch.allclose(losses[task], torch.stack(errors).mean())


def test_the_order_of_the_support_set_does_not_matter():
    learner, _, episodes = learner_of("relation")
    x, y, query_x, _ = episodes.tensors()
    order = torch.randperm(x.shape[1])
    before = learner.predictions_per_step(x, y, query_x).outputs[-1]
    assert torch.allclose(learner.predictions_per_step(x[:, order], y[:, order], query_x).outputs[-1], before)


def test_no_query_changes_the_answer_to_another_where_predictions_are_inductive():
    learner, _, episodes = learner_of("relation")
    x, y, query_x, _ = episodes.tensors()
    whole = learner.predictions_per_step(x, y, query_x, queries="alone").outputs[-1]
    alone = learner.predictions_per_step(x, y, query_x[:, :1], queries="alone").outputs[-1]
    assert torch.allclose(whole[:, :1], alone)


@pytest.mark.parametrize("setting", ["hidden", "narrow"])
def test_layers_without_units_are_refused(setting):
    model, loss, _ = small_problem("conv")
    with pytest.raises(UsageError, match=setting):
        get_method("relation").build(model, {setting: 0}, loss)
