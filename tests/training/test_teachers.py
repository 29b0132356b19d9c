"""Teachers of pretraining: their features as well as their predictions, and models of other classes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pathaware import UsageError
from pathaware.data import catalogue
from pathaware.data.store import ClassSpan, ImageStore, Manifest
from pathaware.models.backbones import FrozenBackbone
from pathaware.training import supervised
from pathaware.training.checksummed import CHECKPOINT, read_checksummed
from pathaware.training.pretrained_classifier import (
    MATCH,
    PROJECTION,
    by_class_means,
    initialised,
    measure_statistics,
)
from pathaware.training.settings import Pretraining
from pathaware.training.supervised import ClassifierStep, pretrain, similarity_loss
from tests.calling import refused
from tests.training.fits import in_memory, pretraining
from tests.training.test_classification import config

WAYS, EACH, SIZE = 6, 20, 28


@pytest.fixture(autouse=True)
def _store(monkeypatch):
    random = torch.Generator().manual_seed(0)
    patterns = 200 * torch.rand(WAYS, 1, 1, SIZE, SIZE, generator=random)
    images = patterns + 55 * torch.rand(WAYS, EACH, 1, SIZE, SIZE, generator=random)
    spans = [ClassSpan(f"c{k}", "train" if k < 4 else "val", EACH * k, EACH) for k in range(WAYS)]
    manifest = Manifest("ink", (1, SIZE, SIZE), tuple(spans), (0.5,), (0.2,), False, "", "test")
    store = ImageStore(manifest, images.flatten(0, 1).to(torch.uint8))
    plain = catalogue.open_store
    only_ink = lambda name, *where: store if name == "ink" else plain(name, *where)  # noqa: E731
    monkeypatch.setattr(catalogue, "open_store", only_ink)


def settings(**changes: object) -> Pretraining:
    values = {"data": "ink", "width": 8, "epochs": 2, "batch": 40, "validate": 1, "device": "cpu"}
    return Pretraining.from_dict({**values, "threads": 1, **changes})


def test_similarities_are_learned_up_to_the_length_of_features():
    taught = F.normalize(torch.randn(12, 5), dim=-1)
    assert similarity_loss(3 * taught, taught).abs() < 1e-6
    assert similarity_loss(torch.randn(12, 5), taught) > 0.1


@pytest.mark.parametrize("views", [0, 2])
def test_a_student_learns_which_images_are_alike_for_its_teacher(tmp_path, views):
    plain = {"crop": 1.0, "jitter": 0.0, "ema": 0.0, "validate": 0}
    teacher = pretrain(settings(width=10, **plain), tmp_path / "teacher").load().model
    images = settings().images(["train"])
    losses = []
    for match in (1e-9, 1.0):
        chosen = settings(match=match, teacher="x", teacher_views=views, epochs=30, rate=0.02, **plain)
        fit = pretraining(chosen, images, teacher)
        while not fit.done:
            fit.advance()
        model = fit.step.ema
        measure_statistics(model, images)
        with torch.no_grad():
            shown = torch.cat(list(images.plain()))
            taught = F.normalize(teacher.features(shown), dim=-1)
            taught = F.normalize(taught - taught.mean(0), dim=-1)
            losses.append(similarity_loss(model.match(model.features(shown)), taught))
    assert losses[1] < 0.5 * losses[0]


def test_a_learner_begins_at_the_directions_of_classifier_and_teacher(tmp_path):
    pretrain(settings(width=10), tmp_path / "teacher")
    student = tmp_path / "student"
    run = pretrain(settings(teacher=str(tmp_path / "teacher"), match=1.0), student)
    stored, _ = read_checksummed(student / CHECKPOINT)
    assert stored[PROJECTION].shape == (4 + len(stored[MATCH]), 8)
    learner = in_memory(config(start=str(student), head="projected", dimensions=6)).objective.learner
    assert torch.equal(learner.start.projection, stored[PROJECTION][:6])
    # All directions together measure what classifier and teacher do, with equal weight.
    with torch.no_grad():
        model, images = run.load().model, run.settings.images(["train"])
        features = torch.cat([model.features(x) for x in images.plain()])
        parts = features @ stored[PROJECTION].T
    assert parts.square().mean(0)[:6].diff().max() < 0  # the longest first
    assert parts.norm(dim=1).square().mean() == pytest.approx(2, rel=0.1)


def test_a_body_without_a_classifier_predicts_by_class_means():
    images = settings().images(["train"])
    teacher = by_class_means(nn.Flatten(), SIZE * SIZE, images)
    logits = torch.cat([teacher(x) for x in images.plain()])
    assert (logits.argmax(1) == images.labels).all()
    losses = [F.cross_entropy(s * logits, images.labels) for s in (0.5, 1, 2)]
    assert losses[1] <= min(losses[0], losses[2])


def test_a_model_of_other_classes_teaches_by_its_frozen_backbone(tmp_path, monkeypatch):
    """As `photos` does, which expects larger images in colour."""

    class Shipped:
        config = None

        def load(self, device: str) -> nn.Module:
            learner = nn.Module()
            learner.model = nn.Sequential(FrozenBackbone(nn.Flatten(), 32 * 32), nn.Linear(32 * 32, 2))
            return learner

        def learned(self):
            inputs = {"size": 32, "channels": 1, "mean": [0.4], "std": [0.3]}
            return {}, {**settings().images(["train"]).inputs.to_dict(), **inputs}

    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.toml").write_text("[problem]\n")
    monkeypatch.setattr(supervised.Run, "open", lambda _: Shipped())
    chosen = settings(teacher="shipped", match=1.0, teacher_views=1)
    images = chosen.images(["train"])
    teacher = supervised._teacher(chosen, images, lambda name: folder)
    step = ClassifierStep(initialised(chosen, 4, images.inputs, 32 * 32), images, chosen, teacher)
    assert step.stored.logits.shape == (4 * EACH, 4)
    assert step.stored.features.shape == (4 * EACH, 32 * 32)
    assert (step.stored.logits.argmax(1) == images.labels).float().mean() > 0.5  # crops are harder
    run = pretrain(chosen, tmp_path / "student", find=lambda name: folder)
    assert run.finished
    # The name is kept, so that the run can be resumed where the model lies elsewhere.
    assert 'teacher = "shipped"' in (run.folder / "config.toml").read_text()


def test_what_cannot_teach_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"match: 1.0 needs a teacher"):
        settings(match=1.0)
    for name, reason in {"sine": "sine can only teach", "nothing": "nothing is not a run folder"}.items():
        shown = refused("pretrain", "ink", "--teacher", name, "--out", tmp_path / "x")
        assert shown.startswith(f"error: --teacher: {reason}")
    assert not (tmp_path / "x").exists()
