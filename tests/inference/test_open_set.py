"""Images of none of the classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from pathaware import FewShotClassifier
from pathaware.core.errors import UsageError
from pathaware.data import open_store
from pathaware.inference.open_set import (
    SCORES,
    ClassMeans,
    area,
    evaluate_open_set,
    false_positives,
    foreignness,
    nearest,
    refusals,
    unknown_images,
)
from pathaware.inference.trained_model import SupportSet, TrainedModel
from tests.inference.models import model, pixels


@pytest.fixture(scope="module")
def glyphs() -> list[torch.Tensor]:
    """The images of four test classes."""
    store = open_store("glyphs")
    return [store.images[start : start + 20] for start in store.split("test").starts[:4].tolist()]


@pytest.fixture(scope="module")
def trained() -> TrainedModel:
    return TrainedModel.open("glyphs", "cpu")


def support_of(glyphs: list[torch.Tensor], classes: int = 3) -> SupportSet:
    images = torch.cat([each[:5] for each in glyphs[:classes]])
    return SupportSet(tuple("abcd"[:classes]), images, torch.arange(classes).repeat_interleave(5))


def test_the_area_is_that_of_scikit_learn_with_ties():
    generator = torch.Generator().manual_seed(0)
    known = torch.randint(0, 8, (50, 4), generator=generator).double()
    foreign = torch.randint(2, 10, (30, 4), generator=generator).double()
    truth = [0] * known.numel() + [1] * foreign.numel()
    assert area(known, foreign) == pytest.approx(
        roc_auc_score(truth, torch.cat([known.flatten(), foreign.flatten()]))
    )


def test_false_positives_and_refusals_count_images():
    known, foreign = torch.arange(100.0).view(10, 10), torch.full((10, 10), 94.5)
    assert false_positives(known, foreign) == 0.0
    assert false_positives(known, foreign - 20) == 1.0
    found = refusals(0.05, 94.0, known, foreign)
    assert (found.known, found.foreign) == (pytest.approx(0.05), 1.0)


def test_foreign_images_are_refused_and_known_ones_are_not(trained, glyphs):
    support = support_of(glyphs)
    adapted = trained.adapt(support.pixels, support.labels, 3)
    known = unknown_images(trained, adapted, support, torch.cat([g[5:15] for g in glyphs[:3]]), 0.05)
    foreign = unknown_images(trained, adapted, support, glyphs[3], 0.05)
    assert sum(known) <= 5
    assert sum(foreign) >= 12
    assert foreignness(trained, adapted, support, glyphs[0][:0], 1.0).shape == (0,)


def test_spreads_are_those_of_images_left_out():
    features, labels = torch.randn(7, 3), torch.tensor([0, 1, 0, 1, 0, 2, 1])
    found = ClassMeans.of(features, labels)
    for label in (0, 1):
        own = features[labels == label]
        left_out = [
            (x - torch.cat([own[:i], own[i + 1 :]]).mean(0)).square().sum() for i, x in enumerate(own)
        ]
        assert found.spreads[label] == pytest.approx(torch.stack(left_out).mean())
    assert found.spreads[2] == pytest.approx(found.spreads[:2].mean())  # it has one image
    assert not ClassMeans.of(features[:2], torch.tensor([0, 1])).spreads.any()


def test_images_of_varied_classes_may_lie_farther_out():
    distances, spreads = torch.tensor([[0.4, 0.9], [0.9, 0.4]]), torch.tensor([0.0, 1.0])
    assert nearest(distances, spreads, 0.0).tolist() == pytest.approx([0.4, 0.4])
    assert nearest(distances, spreads, 1.0).tolist() == pytest.approx([0.4, 0.2])


def test_a_larger_share_refuses_more(trained, glyphs):
    support = support_of(glyphs)
    adapted = trained.adapt(support.pixels, support.labels, 3)
    counts = [sum(unknown_images(trained, adapted, support, glyphs[3], s)) for s in (0.005, 0.05, 0.5)]
    assert counts == sorted(counts)


def test_methods_with_a_head_have_distances_too():
    trained = model("prototypical", ways=2)
    support = SupportSet(("a", "b"), pixels(4), torch.tensor([0, 0, 1, 1]))
    adapted = trained.adapt(support.pixels, support.labels, 2)
    assert (foreignness(trained, adapted, support, pixels(3, seed=2), 1.0) >= 0).all()


def test_a_run_that_is_not_calibrated_is_refused():
    trained = model(ways=2)
    support = SupportSet(("a", "b"), pixels(2), torch.tensor([0, 1]))
    adapted = trained.adapt(support.pixels, support.labels, 2)
    with pytest.raises(UsageError, match="not calibrated"):
        unknown_images(trained, adapted, support, pixels(1), 0.05)


def test_the_estimator_labels_unknown_images(glyphs):
    images = torch.cat([each[:5] for each in glyphs[:3]])
    labels = np.repeat(["a", "b", "c"], 5)
    classifier = FewShotClassifier(device="cpu", unknown=0.05).fit(images, labels)
    assert list(classifier.predict(glyphs[3])).count("unknown") >= 12
    assert list(classifier.predict(glyphs[0][5:])).count("a") >= 12
    numbers = FewShotClassifier(device="cpu", unknown=0.05).fit(images, np.repeat([3, 5, 7], 5))
    assert list(numbers.predict(glyphs[3])).count(-1) >= 12
    assert numbers.influence(glyphs[0][5:7]).shape == (2, 15)
    assert numbers.suspicious_labels() == []
    with pytest.raises(ValueError, match="y: True and False leave no label for unknown images"):
        FewShotClassifier(device="cpu", unknown=0.05).fit(images, np.repeat([True, False, True], 5))
    with pytest.raises(ValueError, match="label of unknown images"):
        FewShotClassifier(device="cpu", unknown=0.05).fit(images, np.repeat(["a", "b", "unknown"], 5))
    with pytest.raises(ValueError, match=r"unknown: .* is not allowed"):
        classifier.is_unknown(glyphs[3][:1], share=0.9)


def test_an_evaluation_compares_the_scores(trained):
    found = evaluate_open_set(trained, tasks=6).summary()
    assert set(found["auroc"]) == set(found["fpr95"]) == set(SCORES)
    assert found["auroc"]["distance"] > 0.8
    assert [row["asked"] for row in found["refused"]["distance"]] == [0.01, 0.05, 0.1]


@pytest.mark.slow
def test_the_promise_is_kept_on_test_classes(trained):
    found = evaluate_open_set(trained, tasks=200).refused["distance"]
    for row in found:
        assert row.known == pytest.approx(row.asked, abs=0.02)
    assert found[1].foreign > 0.5
