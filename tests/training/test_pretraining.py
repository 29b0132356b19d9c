"""Pretraining by supervised classification, and heads initialised to zero."""

from __future__ import annotations

import pytest
import torch
from pathaware.training.pretraining import PretrainingStep, as_classifier
from pathaware.training.trainer import Trainer

from pathaware import UsageError
from pathaware.models import conv4
from pathaware.training import pretraining
from pathaware.training.config import Config
from pathaware.training.meta_training import build
from tests.training.test_classification import config


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True)
def _few_images(monkeypatch):
    """An epoch of the 20,000 glyphs takes a minute; a few hundred do for these tests."""
    from pathaware.data.episodes import LabelledImages

    whole = LabelledImages.__init__

    def short(self, *args, **options):
        whole(self, *args, **options)
        self._images = self._images[::100]

    monkeypatch.setattr(LabelledImages, "__init__", short)
    pretraining._features.cache_clear()


def test_a_classifier_has_the_body_of_the_model_and_a_layer_for_all_classes():
    model = conv4(5, size=28, channels=1, width=4)
    classifier, head = as_classifier(model, 64)
    assert head == "head."
    assert classifier(torch.randn(2, 1, 28, 28)).shape == (2, 64)
    assert torch.equal(classifier.conv1.weight, model.conv1.weight)
    assert model(torch.randn(2, 1, 28, 28)).shape == (2, 5)


def test_meta_training_starts_from_pretrained_features_and_its_own_head():
    plain, started = build(config()), Trainer(config(pretrain=2)).learner
    assert torch.equal(plain.model.head.weight, started.model.head.weight)
    assert not torch.equal(plain.model.conv4.weight, started.model.conv4.weight)


def test_runs_of_other_shots_share_the_features():
    one, five = (Trainer(config({"shots": s}, pretrain=1)).learner.model.conv1.weight for s in (1, 5))
    assert torch.equal(one, five)
    assert pretraining._features.cache_info().misses == 1


def test_a_method_for_varying_tasks_starts_from_pretrained_features():
    tables = config(pretrain=1).to_dict()
    tables["problem"]["varying"] = True
    learner = Trainer(Config.from_dict({**tables, "method": {"name": "proto-pamela"}})).learner
    fixed = Trainer(config(pretrain=1)).learner
    assert torch.equal(learner.model.conv1.weight, fixed.model.conv1.weight)


def test_classification_lowers_its_loss():
    problem = config().problem
    images = problem.labelled("train", "cpu", torch.float32)
    torch.manual_seed(0)
    classifier, _ = as_classifier(problem.model(), images.classes)
    step = PretrainingStep(classifier, images)
    plan = next(images.batches(64, 0, 0))
    losses = [float(step(plan, 0.05)) for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]


def test_a_head_that_starts_at_zero_prefers_no_class():
    learner = build(config({"zero_head": True}))
    assert not learner.model.head.weight.any()
    assert not learner.model(torch.randn(3, 1, 28, 28)).any()
    assert learner.model.conv1.weight.any()


def test_waves_have_no_classes_to_pretrain_on():
    with pytest.raises(UsageError, match="pretrain: sine has no classes"):
        Config.from_dict(
            {"problem": {"name": "sine"}, "method": {"name": "maml"}, "training": {"pretrain": 1}}
        )
