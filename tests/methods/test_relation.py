"""Relation networks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pathaware.core.batch_norm import freeze_batch_norm
from pathaware.methods import get_method
from pathaware.methods.relation import with_maps
from pathaware.models import conv4, mlp, resnet12
from tests.conftest import image_episodes
from tests.methods.checks import learner_of, scattered


@torch.no_grad()
def plain_scores(head, classes, queries, padding):
    """Scores `[N, ways]` of one task, with every pair laid out: `classes [ways, C, h, w]`."""
    ways, count = len(classes), len(queries)
    pairs = torch.cat([classes.repeat(count, 1, 1, 1), queries.repeat_interleave(ways, dim=0)], dim=1)
    maps = F.conv2d(pairs, head.join.weight, head.join.bias, padding=padding)
    maps = F.max_pool2d(head.join_norm(maps).relu(), 2)
    maps = F.conv2d(maps, head.compare.weight, head.compare.bias, padding=padding)
    maps = head.compare_norm(maps).relu()
    if maps.shape[-1] > 1:
        maps = F.max_pool2d(maps, 2)
    return head.score(maps.flatten(1)).sigmoid().view(count, ways)


@pytest.mark.parametrize(("size", "side", "padding", "units"), [(28, 5, 1, 1), (84, 19, 0, 3)])
def test_it_is_the_authors_network_on_images_of_both_of_their_sizes(size, side, padding, units):
    """Maps of 5×5 and 19×19 pixels, two convolution blocks on pairs, and two linear layers."""
    model = conv4(3, size=size, channels=2, width=4)
    learner = get_method("relation").build(model, {}, F.cross_entropy)
    episodes = image_episodes(tasks=2, size=size)
    x, y, query_x, _ = episodes.tensors()
    head = scattered(learner).head
    maps, query_maps = (learner.features(part).unflatten(2, (4, side, side)) for part in (x, query_x))
    assert [layer.in_features for layer in head.score if isinstance(layer, nn.Linear)] == [4 * units**2, 8]
    found = learner.predictions_per_step(x, y, query_x).outputs[-1]
    for task, labels in enumerate(y):
        classes = torch.stack([maps[task][labels == k].mean(0) for k in range(3)])
        assert torch.allclose(found[task], plain_scores(head, classes, query_maps[task], padding))


def test_the_network_keeps_its_own_poolings_and_is_not_changed_in_place():
    model = conv4(3, size=28, channels=2, width=4)
    changed = with_maps(model)
    assert [type(changed.get_submodule(f"pool{i}")) for i in (1, 2, 3, 4)] == [
        nn.MaxPool2d,
        nn.MaxPool2d,
        nn.Identity,
        nn.Identity,
    ]
    assert [changed.get_submodule(f"conv{i}").padding for i in (1, 2, 3, 4)] == [(0, 0)] * 2 + [(1, 1)] * 2
    assert [type(model.get_submodule(f"pool{i}")) for i in (3, 4)] == [nn.MaxPool2d] * 2
    assert [model.get_submodule(f"conv{i}").padding for i in (1, 2)] == [(1, 1)] * 2


@pytest.mark.parametrize("size", [16, 20, 28, 32, 40, 64, 100])
def test_images_of_any_size_from_16_pixels_have_scores(size):
    learner = get_method("relation").build(conv4(3, size=size, channels=2, width=4), {}, F.cross_entropy)
    x, y, query_x, _ = image_episodes(tasks=1, size=size).tensors()
    scores = learner.predictions_per_step(x, y, query_x).outputs[-1]
    assert ((scores > 0) & (scores < 1)).all()


@pytest.mark.parametrize(
    "network", [lambda: resnet12(3, size=16, channels=2, width=2), lambda: mlp(2 * 256, (6,), 3)]
)
def test_networks_of_other_kinds_are_used_as_they_are(network):
    model = network()
    learner = get_method("relation").build(model, {}, F.cross_entropy)
    assert with_maps(model) is model
    x, y, query_x, _ = image_episodes(tasks=2, size=16).tensors()
    if isinstance(next(model.children()), nn.Linear):
        x, query_x = x.flatten(2), query_x.flatten(2)
    assert learner.predictions_per_step(x, y, query_x).outputs[-1].shape == (2, 9, 3)


def test_its_loss_is_the_squared_error_of_every_score():
    learner, _, episodes = learner_of("relation")
    predictions = scattered(learner).predictions_per_step(*episodes.tensors()[:3]).outputs[-1]
    losses = learner.adapted_losses(episodes)
    for task, labels in enumerate(episodes.query_y):
        errors = [
            (predictions[task, i, k] - float(k == label)) ** 2
            for i, label in enumerate(labels)
            for k in range(3)
        ]
        assert torch.allclose(losses[task], torch.stack(errors).mean())


def test_a_frozen_network_predicts_as_the_learner_does_inductively():
    learner, _, episodes = learner_of("relation")
    x, y, query_x, _ = episodes.tensors()
    expected = scattered(learner).predictions_per_step(x, y, query_x, queries="alone").outputs[-1][0]
    frozen = freeze_batch_norm(learner.adapt(x[0], y[0]), x[0])
    assert torch.allclose(frozen(query_x[0]), expected)
    assert torch.allclose(frozen(query_x[0, :1]), expected[:1])
