"""Reptile with the inner optimiser and the numbers of steps of its authors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import mse_loss

import pathaware
from tests.conftest import distance, small_problem
from tests.methods.checks import estimated, learner_of


@pytest.mark.parametrize("train_steps", [None, 2])
def test_with_adam_a_task_ends_where_the_optimiser_of_pytorch_does(train_steps):
    settings = {"steps": 4, "rate": 0.02, "adam": True, "train_steps": train_steps}
    learner, outer, episodes = learner_of("reptile", "mlp", guard=False, **settings)
    start = torch.nn.utils.parameters_to_vector(learner.model.parameters())
    x = torch.cat([episodes.support_x, episodes.query_x], 1)
    y = torch.cat([episodes.support_y, episodes.query_y], 1)
    parts = train_steps or 4
    size = x.shape[1] // parts
    moved = []
    for k in range(len(episodes)):
        network = copy.deepcopy(learner.model)
        optimizer = torch.optim.Adam(network.parameters(), lr=0.02, betas=(0.0, 0.999))
        for rows in (slice(j * size, (j + 1) * size) for j in range(parts)):
            optimizer.zero_grad()
            mse_loss(network(x[k, rows]), y[k, rows]).backward()
            optimizer.step()
        moved.append(start - torch.nn.utils.parameters_to_vector(network.parameters()))
    assert distance(estimated(learner, outer, episodes), torch.stack(moved).mean(0)) < 1e-10


def test_more_steps_are_taken_in_evaluation_than_in_training():
    model, loss, episodes = small_problem("mlp")
    learner = pathaware.reptile(model, loss, steps=50, train_steps=8, adam=True, step_size=1e-3)
    found = learner.predictions_per_step(*episodes.tensors()[:3])
    assert len(found.outputs) == 51
