"""Influence is the derivative that it claims to be, and wrong labels are found."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from pathaware.core.errors import UsageError
from pathaware.core.seeding import generator
from pathaware.data import open_store
from pathaware.inference.influence import explain, influence, reasons, suspicious_labels
from pathaware.inference.trained_model import SupportSet, TrainedModel
from pathaware.methods.gap import Gap
from pathaware.training.config import Config
from pathaware.training.meta_training import build
from tests.inference.models import model, pixels

METHODS = ["pamela", "maml", "anil", "meta-sgd", "mt-net", "prototypical", "r2d2", "lr-d2", "proto-pamela"]


@pytest.mark.parametrize(
    ("method", "head"),
    [*((method, "learned") for method in METHODS), ("maml", "prototypes"), ("maml", "projected")],
)
def test_influence_equals_finite_differences_of_the_weights(method, head):
    problem = {"name": "classification", "data": "glyphs", "ways": 3, "shots": 2, "queries": 1, "width": 4}
    # with class means a step size of almost zero, so that all influence is through the means
    rate = 0.2 if head == "learned" else 1e-6
    sizes = {"pamela": {"rate": 1.0, "q_start": rate}, **{other: {"rate": rate} for other in METHODS[1:5]}}
    settings = {"name": method, **sizes.get(method, {})}
    config = Config.from_dict(
        {"problem": problem, "method": settings, "training": {"device": "cpu", "head": head}}
    )
    torch.manual_seed(0)
    learner = build(config, torch.device("cpu")).double()
    episodes = config.problem.tasks("val", "cpu", torch.float64).sample(1, generator(0, "influence"))
    support_x, support_y, query_x, query_y = (tensor[0] for tensor in episodes.tensors())
    found = influence(learner, support_x, support_y, query_x, query_y)

    step, count = 1e-6, len(support_y)
    change = step * torch.eye(count, dtype=torch.float64)
    weights = torch.cat([1 + change, 1 - change])
    many = [tensor.expand(2 * count, *tensor.shape) for tensor in (support_x, support_y, query_x)]
    with torch.no_grad():
        outputs = learner.adapted(*many[:2], weights=weights).outputs(many[2]).log_softmax(-1)
        predicted = outputs[:, torch.arange(len(query_y)), query_y]
    expected = (predicted[:count] - predicted[count:]).T / (2 * step)
    assert found.abs().max() > 0.01
    assert (found - expected).abs().max() < 1e-6


@pytest.mark.parametrize("method", ["pamela", "mt-net", "prototypical", "r2d2", "lr-d2", "proto-pamela"])
def test_weights_of_one_change_nothing(method):
    trained = model(method, ways=3)
    learner = trained.learner(3)
    x, y = trained.image_input.normalised(pixels(6)), torch.tensor([0, 1, 2, 0, 1, 2])
    with torch.no_grad():
        expected = learner.predictions_per_step(x[None], y[None], x[None], queries="alone").outputs[-1]
        found = learner.adapted(x[None], y[None], weights=x.new_ones(1, 6)).outputs(x[None])
    torch.testing.assert_close(found.log_softmax(-1), expected.log_softmax(-1), atol=1e-5, rtol=1e-5)


def test_the_copies_of_a_repeated_image_count_together():
    """A class with one image has as much weight as one with two; its image is learned twice."""
    trained = model(ways=2)
    support = SupportSet(("a", "b"), pixels(3), torch.tensor([0, 0, 1]))
    assert explain(trained, support, pixels(2, seed=1), torch.tensor([0, 1])).shape == (2, 3)


def test_reasons_are_ranked_and_of_one_sign():
    trained = TrainedModel.open("glyphs", "cpu")
    glyphs = open_store("glyphs").images
    support = SupportSet(("a", "b"), glyphs[[0, 1, 20, 21]], torch.tensor([0, 0, 1, 1]))
    (reason,) = reasons(trained, support, glyphs[[2]], torch.tensor([0]))
    values = explain(trained, support, glyphs[[2]], torch.tensor([0]))[0].tolist()
    assert [values[i] for i, _ in reason.positive] == pytest.approx([v for _, v in reason.positive])
    assert all(value > 0 for _, value in reason.positive)
    assert all(value < 0 for _, value in reason.negative)
    assert [v for _, v in reason.positive] == sorted((v for v in values if v > 0), reverse=True)[:2]


def test_a_planted_wrong_label_is_the_most_suspicious():
    glyphs = open_store("glyphs")
    starts = glyphs.split("test").starts[:3].tolist()
    images = torch.cat([glyphs.images[start : start + 3] for start in starts])
    labels = torch.arange(3).repeat_interleave(3)
    labels[4] = 0
    trained = TrainedModel.open("glyphs", "cpu")
    support = SupportSet(("a", "b", "c"), images, labels)
    found = suspicious_labels(trained, support, odds=0)
    assert found[0].image == 4
    assert found[0].other == 1
    assert found[0].score < 0 < found[-1].score
    assert [each.score for each in found] == sorted(each.score for each in found)
    assert suspicious_labels(trained, support)[0].image == 4


def test_a_label_is_suspicious_only_if_another_one_is_much_more_probable():
    trained = TrainedModel.open("glyphs", "cpu")
    support = SupportSet(tuple("abcd"), pixels(24), torch.arange(4).repeat(6))
    ranked = suspicious_labels(trained, support, odds=0)
    for odds in (1.0, 2.0, 20.0):
        marked = suspicious_labels(trained, support, odds)
        assert marked == [each for each in ranked if each.score <= -math.log(odds)]
    # Noise has no classes, so predictions are wrong, but not all of them clearly.
    assert len(suspicious_labels(trained, support)) < len(suspicious_labels(trained, support, odds=1))
    worst = ranked[0]
    kept = torch.arange(24) != worst.image
    adapted = trained.adapt(support.pixels[kept], support.labels[kept], 4)
    predicted = adapted.probabilities(support.pixels[~kept])[0].log()
    own = predicted[support.labels[worst.image]]
    assert worst.score == pytest.approx((own - predicted[worst.other]).item(), abs=1e-3)


def test_an_image_alone_in_its_class_is_not_suspected():
    found = suspicious_labels(model(ways=2), SupportSet(("a", "b"), pixels(3), torch.tensor([0, 0, 1])), 0)
    assert sorted(each.image for each in found) == [0, 1]


@pytest.mark.parametrize("method", ["prototypical", "r2d2", "lr-d2"])
def test_a_weight_of_zero_in_a_head_leaves_the_example_out(method):
    learner = model(method, ways=2).learner(2)
    features = torch.randn(1, 5, learner.head.features, dtype=torch.float32)
    labels, weights = torch.tensor([[0, 1, 0, 1, 0]]), torch.tensor([[1, 1, 1, 1, 0]], dtype=torch.float32)
    found = learner.head.fit_weighted(features, labels, weights)[0]
    torch.testing.assert_close(found, learner.head.fit(features[:, :4], labels[:, :4])[0])


def test_the_photos_that_spoke_for_an_answer_are_of_its_class():
    trained = TrainedModel.open("photos", "cpu")
    images = made_up_photos(hues=(0, 1), each=3)
    support = SupportSet(("red", "green"), images, torch.tensor([0, 0, 0, 1, 1, 1]))
    between = made_up_photos(hues=(0, 1), each=1, seed=1).float().mean(0, keepdim=True).byte()
    values = explain(trained, support, between, torch.tensor([0]))[0]
    assert values.shape == (6,)
    assert values.abs().max() > 1e-4
    assert len(suspicious_labels(trained, support, odds=0)) == 6


def made_up_photos(hues: tuple[int, ...], each: int, seed: int = 0) -> torch.Tensor:
    """Noise in which one colour of each class is brighter, `[classes · each, 3, 224, 224]`."""
    noise = torch.rand(len(hues), each, 3, 224, 224, generator=torch.Generator().manual_seed(seed))
    for i, hue in enumerate(hues):
        noise[i, :, hue] += 1
    return (127 * noise).byte().flatten(0, 1)


def test_singular_vectors_are_held_constant():
    network = nn.Linear(3, 2)
    assert ["weights" in Gap(network, exact=exact).allows for exact in (False, True)] == [True, False]


HOLD = "holds parts of its inner steps constant"


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        *((method, HOLD) for method in ("imaml", "imaml-hf", "meta-lstm", "l2l")),
        ("matching", "neither has an inner loop nor fits a head"),
    ],
)
def test_methods_without_influence_have_suspicions(method, reason):
    trained = model(method, ways=2)
    support = SupportSet(("a", "b"), pixels(4), torch.tensor([0, 0, 1, 1]))
    with pytest.raises(UsageError, match=reason) as error:
        explain(trained, support, pixels(1), torch.tensor([0]))
    assert error.value.field == "why"
    assert "\n" not in str(error.value)
    assert len(suspicious_labels(trained, support, odds=0)) == 4
