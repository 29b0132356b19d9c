"""Siamese networks."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from pathaware.methods.siamese import Siamese
from tests.methods.checks import learner_of, scattered


def pair_logits(learner, episodes, task):
    """σ⁻¹(p) of every query with every support image, one pair after another: `[Q, S]`."""
    support, queries = learner.features(episodes.support_x)[task], learner.features(episodes.query_x)[task]
    head = learner.head
    rows = [[sum(head.alpha * (q - s).abs()) + head.beta for s in support] for q in queries]
    return torch.stack([torch.stack(row) for row in rows])


def test_the_answer_for_a_class_is_its_best_match():
    learner, _, episodes = learner_of("siamese")
    predictions = scattered(learner).predictions_per_step(*episodes.tensors()[:3]).outputs[-1]
    for task, labels in enumerate(episodes.support_y):
        logits = pair_logits(learner, episodes, task)
        for k in range(3):
            assert torch.allclose(predictions[task, :, k], logits[:, labels == k].max(1).values)


def test_its_loss_is_the_cross_entropy_of_pairs_each_kind_counted_half():
    learner, _, episodes = learner_of("siamese")
    losses = scattered(learner).adapted_losses(episodes)
    for task in range(len(episodes)):
        logits = pair_logits(learner, episodes, task)
        kinds = {True: [], False: []}
        for i, query in enumerate(episodes.query_y[task]):
            for j, support in enumerate(episodes.support_y[task]):
                alike = bool(query == support)
                cost = binary_cross_entropy_with_logits(logits[i, j], torch.tensor(float(alike)))
                kinds[alike].append(cost)
        means = [torch.stack(costs).mean() for costs in kinds.values()]
        assert len(kinds[False]) == 2 * len(kinds[True])
        assert torch.allclose(losses[task], sum(means) / 2)


def test_before_training_an_image_matches_itself_best():
    learner, _, episodes = learner_of("siamese")
    x, y, _, _ = episodes.tensors()
    assert torch.equal(learner.predictions_per_step(x, y, x).outputs[-1].argmax(2), y)


def test_before_training_near_pairs_match_and_far_pairs_do_not():
    """With β = 0 no pair could have p > ½, and the network had to unlearn that first."""
    head = Siamese(nn.Sequential(nn.Flatten(), nn.Linear(256, 5)))
    unrelated = torch.randn(2, 20, 256, 4).amax(3).relu()  # largest of four normal numbers and zero
    logits = head.pairs(unrelated + 0.3 * torch.randn(2, 20, 256), unrelated)
    own = torch.eye(20, dtype=torch.bool).expand(2, -1, -1)
    assert (logits[own] > 0).all()
    assert (logits[~own] < 0).all()
