"""A last layer that begins at the class means: what it predicts, and what it is differentiated to."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware import Episodes, GradientDescent, MetaLearner, Pamela
from pathaware.core.errors import UsageError
from pathaware.core.learner import HeadStart
from pathaware.core.parameters import Layout
from pathaware.core.prototype_start import directions
from pathaware.methods import get_method
from pathaware.models import conv4
from tests.conftest import distance, image_episodes, slope_error


def learner_of(
    execution: str = "auto",
    rule=lambda model: Pamela(model, 3, rate=0.1, q_start=0.5, skip=1),
    head: HeadStart = "prototypes",
) -> MetaLearner:
    torch.manual_seed(0)
    model = conv4(3, size=8, channels=2, width=6, blocks=2)
    learner = MetaLearner(model, rule(model), F.cross_entropy, execution=execution, head=head)
    learner.start.project(directions(torch.randn(4, model.head.in_features)))
    return learner


def features(learner: MetaLearner, x: Tensor) -> Tensor:
    body = nn.Sequential(*list(learner.model.children())[:-1])
    found, projection = body(x).flatten(1), learner.start.projection
    return F.normalize(found if projection is None else found @ projection.T, dim=1)


both_heads = pytest.mark.parametrize("head", ["prototypes", "projected"])


@both_heads
def test_without_a_step_the_nearest_class_mean_wins(head: HeadStart):
    learner, episodes = learner_of(head=head), image_episodes(size=8)
    x, y, queries = episodes.support_x, episodes.support_y, episodes.query_x
    with torch.no_grad():
        found = learner.predictions_per_step(x, y, queries, steps=0).outputs[0]
        for t in range(len(x)):
            support, query = features(learner, x[t]), features(learner, queries[t])
            means = torch.stack([F.normalize(support[y[t] == k].mean(0), dim=0) for k in range(3)])
            assert torch.equal(found[t].argmax(1), (query @ means.T).argmax(1))
    assert found.argmax(2).unique().numel() > 1


def meta_gradient(learner: MetaLearner, episodes: Episodes) -> Tensor:
    learner.meta_loss(episodes).backward()
    return torch.cat([p.grad.flatten() for p in learner.parameters() if p.grad is not None])


@both_heads
@pytest.mark.parametrize("execution", ["auto", "vmap"])
def test_the_meta_gradient_is_that_of_a_loop(execution: str, head: HeadStart):
    episodes = image_episodes(size=8)
    found, expected = (meta_gradient(learner_of(e, head=head), episodes) for e in (execution, "loop"))
    assert distance(found, expected) < 1e-10


@both_heads
def test_the_meta_gradient_is_that_of_finite_differences(head: HeadStart):
    learner = learner_of(rule=lambda model: GradientDescent(model, 1, rate=0.1), head=head)
    episodes = image_episodes(size=8)
    meta_gradient(learner, episodes)
    parameters = [p for p in learner.parameters() if p.grad is not None]
    assert all(any(p is own for p in parameters) for own in learner.start.parameters())
    loss = partial(learner.query_loss, episodes)
    assert slope_error(loss, parameters, [p.grad for p in parameters]) < 1e-4


def test_a_projection_begins_at_the_directions_of_a_classifier():
    """Features that no class of the classifier uses have no part in the prediction."""
    learner, classifier = learner_of(head="projected"), torch.zeros(12, 24)
    classifier[:, :12] = torch.randn(12, 12)
    learner.start.project(directions(classifier))
    used = learner.start.projection[:12]
    assert used[:, 12:].abs().max() < 1e-12
    assert distance(used @ used.T, torch.eye(12)) < 1e-12
    assert learner.start.projection.shape == (24, 24)


def test_the_order_of_classes_does_not_matter():
    learner = learner_of(rule=lambda model: GradientDescent(model, 2, rate=0.1))
    episodes = image_episodes(size=8)
    x, y, queries = episodes.support_x, episodes.support_y, episodes.query_x
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        usual = learner.predictions_per_step(x, y, queries).outputs[-1]
        renamed = learner.predictions_per_step(x, order[y], queries).outputs[-1]
    assert distance(renamed[..., order], usual) < 1e-10


def test_a_last_layer_that_does_not_adapt_is_refused():
    model = conv4(3, size=8, channels=2, width=6, blocks=2)
    layout = Layout.of(model, lambda name: name.startswith("conv"))
    with pytest.raises(UsageError, match="head: prototypes need a last layer that adapts"):
        MetaLearner(model, GradientDescent(layout, 1), F.cross_entropy, head="prototypes")
    with pytest.raises(UsageError, match="head: r2d2 adapts no last layer"):
        get_method("r2d2").build(model, {}, F.cross_entropy, head="prototypes")


def test_images_without_any_feature_are_predicted_with_equal_probabilities():
    learner, episodes = learner_of(), image_episodes(size=8)
    with torch.no_grad():
        learner.model.get_parameter("norm2.bias").fill_(-100.0)  # no unit of the last block is active
        found = learner.predictions_per_step(*episodes.tensors()[:3]).outputs[-1]
    assert torch.equal(found.softmax(-1), torch.full_like(found, 1 / 3))
    assert meta_gradient(learner, episodes).isfinite().all()
