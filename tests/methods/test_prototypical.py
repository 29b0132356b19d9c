"""Prototypical networks."""

from __future__ import annotations

import torch

from pathaware.methods.prototypical import class_means, squared_distances
from tests.methods.checks import learner_of


def test_prototypes_are_the_means_of_their_classes():
    features, targets = torch.randn(2, 6, 4), torch.tensor([[0, 1, 2, 2, 1, 0], [2, 2, 1, 1, 0, 0]])
    means = class_means(features, targets, 3)
    for task in range(2):
        for k in range(3):
            assert torch.allclose(means[task, k], features[task][targets[task] == k].mean(0))


def test_distances_are_those_of_every_pair():
    a, b = torch.randn(2, 5, 4), torch.randn(2, 3, 4)
    assert torch.allclose(squared_distances(a, b), torch.cdist(a, b).square())


def test_the_answer_is_the_nearest_prototype():
    learner, _, episodes = learner_of("prototypical")
    predictions = learner.predictions_per_step(*episodes.tensors()[:3]).outputs[-1]
    prototypes = class_means(learner.features(episodes.support_x), episodes.support_y, 3)
    nearest = torch.cdist(learner.features(episodes.query_x), prototypes).argmin(-1)
    assert torch.equal(predictions.argmax(-1), nearest)
