"""Mirrored views, and refinement with pseudo-labels of the queries."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from pathaware.core.errors import UsageError
from pathaware.core.few_shot import AdaptedTasks
from pathaware.data import open_store
from pathaware.data.pixels import ImageInput
from pathaware.inference.trained_model import MirrorMean, TrainedModel
from pathaware.training import refinement
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate, mean_of_views, predict_episodes
from pathaware.training.meta_training import build
from pathaware.training.refinement import (
    balanced_means,
    sinkhorn,
    tim,
    tim_logits,
    tim_objective,
)
from tests.training.test_query_levels import config, episodes_of, running, trained_a_little


@pytest.fixture
def mirrored_glyphs(monkeypatch):
    """Glyphs of a store that allows mirroring, as photographs do."""
    whole = ImageInput.of.__func__
    allowed = classmethod(lambda cls, store: dataclasses.replace(whole(cls, store), mirror=True))
    monkeypatch.setattr(ImageInput, "of", allowed)


def test_mirroring_all_images_of_a_task_changes_no_prediction():
    settings = config()
    learner, episodes = trained_a_little(settings), episodes_of(settings)
    x, y, query_x, query_y = episodes.tensors()
    turned = type(episodes)(x.flip(-1), y, query_x.flip(-1), query_y)
    with torch.no_grad():
        for level in ("alone", "batch"):
            one, other = (
                predict_episodes(learner, e, "mirror", "none", queries=level).outputs[-1]
                for e in (episodes, turned)
            )
            plain = predict_episodes(learner, episodes, "single", "none", queries=level).outputs[-1]
            assert torch.allclose(one, other, atol=1e-4)
            assert one.shape == plain.shape
            assert not torch.allclose(one, plain.log_softmax(-1), atol=1e-3)


def test_the_mean_of_views_is_a_mean_of_probabilities():
    logits = torch.randn(2, 6, 4)
    expected = (logits[:, :3].softmax(-1) + logits[:, 3:].softmax(-1)) / 2
    assert torch.allclose(mean_of_views(logits).exp(), expected, atol=1e-6)


def test_an_evaluation_says_how_it_looked_at_images(mirrored_glyphs):
    settings = config()
    learner = trained_a_little(settings)
    plain, mirrored = (evaluate(learner, settings.problem, tasks=6, views=v) for v in ("single", "mirror"))
    assert mirrored.summary()["views"] == "mirror"
    assert plain.summary()["views"] == "single"
    assert not torch.equal(plain.values, mirrored.values)


@pytest.mark.parametrize("views", ["mirror", "upside-down"])
def test_views_that_an_evaluation_does_not_have(views):
    settings = config()
    with pytest.raises(UsageError, match="views: "):
        evaluate(build(settings), settings.problem, tasks=2, views=views)


def test_sinkhorn_balances_the_classes_and_keeps_the_order_of_clear_cases():
    torch.manual_seed(0)
    balanced = sinkhorn(torch.randn(3, 20, 4) + torch.tensor([4.0, 0, 0, 0]))
    assert torch.allclose(balanced.sum(-1), torch.ones(3, 20))
    assert torch.allclose(balanced.sum(1), torch.full((3, 4), 5.0), atol=0.05)
    clear = 10 * torch.eye(4).repeat(5, 1)[None]
    assert torch.equal(sinkhorn(clear).argmax(-1), clear.argmax(-1))


@pytest.mark.parametrize("method", ["maml", "metal", "prototypical"])
def test_refinement_is_joint_and_uses_the_queries(method, mirrored_glyphs, monkeypatch):
    settings = config(method)
    learner = trained_a_little(settings)
    monkeypatch.setattr(refinement, "ROUNDS", 1)
    seen = []
    whole = learner.predictions_per_step

    def recorded(x, y, query_x, **options):
        seen.append((x.shape[1], y.shape[1], query_x.shape[1]))
        return whole(x, y, query_x, **options)

    monkeypatch.setattr(learner, "predictions_per_step", recorded)
    result = evaluate(learner, settings.problem, tasks=2, views="mirror", refine="sinkhorn")
    assert seen[:2] == [(12, 12, 18), (30, 30, 18)]  # 6 support images, 9 queries, mirrors
    assert result.summary()["queries"] == "joint"
    assert result.summary()["refine"] == "sinkhorn"


def test_pseudo_labels_that_are_right_help_a_task_that_they_describe(monkeypatch):
    """With the true labels as predictions, refinement adapts to the queries themselves."""
    settings = config("maml", rate=0.5)
    learner, episodes = trained_a_little(settings), episodes_of(settings)
    truth = torch.nn.functional.one_hot(episodes.query_y, 3).float()
    monkeypatch.setattr(refinement, "sinkhorn", lambda logits: truth)
    with torch.no_grad():
        plain, refined = (
            predict_episodes(learner, episodes, "single", refine).outputs[-1]
            for refine in ("none", "sinkhorn")
        )
    right = [(o.argmax(-1) == episodes.query_y).double().mean() for o in (plain, refined)]
    assert right[1] > right[0]


def test_refinement_does_not_go_with_lower_levels():
    settings = config()
    for options in ({"queries": "batch"}, {"inductive": True}):
        with pytest.raises(UsageError, match="queries: sinkhorn uses all queries jointly"):
            evaluate(build(settings), settings.problem, tasks=2, refine="sinkhorn", **options)
    for options in ({"queries": "alone"}, {"inductive": True}):
        with pytest.raises(UsageError, match="queries: centre uses the mean of all queries"):
            evaluate(build(settings), settings.problem, tasks=2, refine="centre", **options)
    with pytest.raises(UsageError, match="refine: 'lda' must be one of none, centre, means, sinkhorn, tim"):
        evaluate(build(settings), settings.problem, tasks=2, refine="lda")


@pytest.mark.parametrize("refine", ["centre", "means", "sinkhorn", "tim"])
def test_values_cannot_be_refined(refine):
    settings = Config.from_dict({"problem": {"name": "sine"}, "method": {"name": "maml"}})
    with pytest.raises(UsageError, match=f"refine: {refine}: sine-k10 has no classes; use none"):
        evaluate(build(settings), settings.problem, tasks=2, refine=refine)


@pytest.mark.parametrize("settings", [config("maml"), running("maml")])
def test_centred_logits_are_those_of_centred_features(settings):
    """The last layer sees features without their mean over the queries of a task."""
    learner, episodes = trained_a_little(settings), episodes_of(settings)
    with torch.no_grad():
        found = predict_episodes(learner, episodes, "single", "centre").outputs[-1]
        adapted = [learner.adapt(*task) for task in zip(episodes.support_x, episodes.support_y, strict=True)]
        for network, logits, queries in zip(adapted, found, episodes.query_x, strict=True):
            *body, last = network.children()
            features = nn.Sequential(*body)(queries)
            expected = (features - features.mean(0)) @ last.weight.T
            assert torch.allclose(logits, expected, atol=1e-5)
    result = evaluate(learner, settings.problem, tasks=2, refine="centre")
    assert (result.queries, result.summary()["refine"]) == ("batch", "centre")


@pytest.mark.parametrize("method", ["maml", "anil", "metal", "prototypical"])
def test_tim_improves_its_objective_and_keeps_the_classes_apart(method):
    settings = config(method)
    learner, episodes = trained_a_little(settings), episodes_of(settings)
    x, y, queries, _ = episodes.tensors()
    with torch.no_grad():
        after = tim(learner, x, y, queries)
        support, query = map(learner.adapted(x, y, query_x=queries).features, (x, queries))
    assert after.shape == (2, 9, 3)
    assert not after.requires_grad
    z, s = (torch.nn.functional.normalize(each, dim=-1) for each in (query, support))
    labels = torch.nn.functional.one_hot(y, 3).float()
    start = labels.mT @ s / labels.sum(1)[..., None]
    before = tim_logits(z, start)
    near = tim_logits(s, start)
    assert (tim_objective(near, labels, after) < tim_objective(near, labels, before)).all()


def test_class_means_follow_the_queries():
    """What all queries share, only the example of one class shows; so alone they all look like that class."""
    random = torch.Generator().manual_seed(0)
    classes, shared = torch.eye(3, 8), 3 * torch.eye(8)[7]
    queries = classes.repeat_interleave(5, 0) + shared + 0.1 * torch.randn(15, 8, generator=random)
    support = classes + torch.tensor([1.0, 0.1, 0.1])[:, None] * shared
    learner = nn.Module()
    learner.adapted = lambda *_, **__: AdaptedTasks(features=lambda x: x, outputs=lambda x: x)
    y, truth = torch.arange(3)[None], torch.arange(3).repeat_interleave(5)
    found = balanced_means(learner, support[None], y, queries[None])[0].argmax(-1)
    normalise = torch.nn.functional.normalize
    plain = (normalise(queries, dim=-1) @ normalise(support, dim=-1).T).argmax(-1)
    assert (plain == 0).all()
    assert (found == truth).all()


def test_class_means_are_taken_in_the_learned_subspace():
    settings = config("maml")
    settings = dataclasses.replace(
        settings, training=dataclasses.replace(settings.training, head="projected", dimensions=2)
    )
    learner, episodes = build(settings), episodes_of(settings)
    x, y, queries, _ = episodes.tensors()
    with torch.no_grad():
        before = balanced_means(learner, x, y, queries)
        learner.start.projection.copy_(learner.start.projection.flip(0))  # another basis of the same space
        assert torch.allclose(balanced_means(learner, x, y, queries), before, atol=1e-4)
        learner.start.projection[1] = 0
        assert not torch.allclose(balanced_means(learner, x, y, queries), before, atol=1e-2)


def test_features_of_an_adapted_network_are_the_inputs_of_its_last_layer():
    settings = config("maml", rate=0.3)
    learner, episodes = trained_a_little(settings), episodes_of(settings)
    x, y, queries, _ = episodes.tensors()
    with torch.no_grad():
        features = learner.adapted(x, y).features(queries)
        end = learner.end(learner.path(x, y))
        head = learner.rule.layout.views(end)
        logits = features @ head["head.weight"].mT + head["head.bias"][:, None]
        assert torch.allclose(logits, learner.outputs_at(end, queries), atol=1e-4)


@pytest.mark.parametrize("refine", ["means", "tim"])
def test_an_evaluation_with_class_weights_of_all_queries_is_joint(refine):
    settings = config("maml")
    learner = trained_a_little(settings)
    plain, refined = (evaluate(learner, settings.problem, tasks=4, refine=r) for r in ("none", refine))
    assert refined.summary()["queries"] == "joint"
    assert torch.equal(plain.values[:, :-1], refined.values[:, :-1])  # only the last prediction is another


def test_a_model_looks_at_mirror_images_where_its_images_may_be_mirrored():
    glyphs = open_store("glyphs").images
    with pytest.raises(UsageError, match="views: mirror: the model was not trained on images"):
        TrainedModel.open("glyphs", "cpu", "mirror")
    plain = TrainedModel.open("glyphs", "cpu")
    model = TrainedModel(
        plain.config, plain._learned, {**plain._inputs, "mirror": True}, plain.device, "mirror"
    )
    adapted = model.adapt(glyphs[[0, 1, 20, 21]], torch.tensor([0, 0, 1, 1]), 2)
    assert isinstance(adapted.network, MirrorMean)
    new = glyphs[[2, 22, 3]]
    found = adapted.probabilities(new)
    assert torch.allclose(found, adapted.probabilities(new.flip(-1)), atol=1e-5)
    assert torch.allclose(found.sum(1), torch.ones(3, dtype=torch.double))
    assert not torch.allclose(
        found, plain.adapt(glyphs[[0, 1, 20, 21]], torch.tensor([0, 0, 1, 1]), 2).probabilities(new)
    )
