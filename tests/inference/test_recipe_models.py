"""Models with constant statistics and class means, as the recipe trains them, in use.

For their export see `test_export` and `test_export_learner`.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pathaware import FewShotClassifier
from pathaware.core.batch_norm import FrozenBatchNorm
from pathaware.inference.open_set import features_and_logits
from pathaware.inference.trained_model import TrainedModel
from tests.inference.models import PHOTO, image, model, pixels, save_run

METHODS = ["pamela", "maml", "prototypical", "r2d2", "relation"]


def labels_of(classes: int) -> Tensor:
    return torch.arange(2 * classes) % classes


@pytest.mark.parametrize(
    ("method", "classes"), [*((method, 3) for method in METHODS), ("pamela", 5), ("pamela", 7)]
)
def test_an_adapted_network_predicts_as_evaluation_does(method, classes):
    trained, y = model(method, recipe=True), labels_of(classes)
    images, queries = pixels(len(y)), pixels(4, seed=1)
    adapted = trained.adapt(images, y, classes)
    found = adapted.probabilities(queries)
    order = trained.arranged(images, y, classes)
    given = trained.support_inputs(images)[order], y[order], trained.query_inputs(queries)
    learner = trained.learner(classes)
    with torch.no_grad():
        outputs = learner.predictions_per_step(*(each[None] for each in given), queries="alone").outputs[-1]
    torch.testing.assert_close(found, outputs[0].double().softmax(-1), atol=1e-5, rtol=1e-4)
    alone = torch.cat([adapted.probabilities(one[None]) for one in queries])
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-4)


def test_the_statistics_are_those_of_training_and_count():
    trained, y = model(recipe=True), labels_of(3)
    network = trained.adapt(pixels(6), y, 3).network
    norms = [module for module in network.modules() if isinstance(module, FrozenBatchNorm)]
    kept = trained.learner(3).state_dict()
    assert len(norms) == 4
    assert torch.equal(norms[1].running_var, kept["model.norm2.running_var"])
    before = trained.adapt(pixels(6), y, 3).probabilities(pixels(4, seed=1))
    with torch.no_grad():
        trained.learner(3).get_buffer("model.norm2.running_mean").add_(1.0)
    after = trained.adapt(pixels(6), y, 3).probabilities(pixels(4, seed=1))
    assert (after - before).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
@pytest.mark.parametrize("affine", [True, False])
def test_a_frozen_norm_has_an_equal_of_pytorch(kind, affine):
    norm = kind(3, eps=1e-2, affine=affine)
    for value in norm.state_dict().values():
        value.copy_(torch.rand(value.shape) + 0.5)
    frozen = FrozenBatchNorm(norm)
    plain, x = frozen.to_batch_norm(), torch.randn(4, 3, *(2, 2) * (kind is nn.BatchNorm2d))
    assert type(plain) is kind
    assert torch.allclose(plain(x), frozen(x), atol=1e-12)


def test_estimators_use_such_a_run_without_its_pretraining(tmp_path):
    run = save_run(tmp_path / "run", recipe=True)
    images, labels = [image(seed) for seed in range(6)], ["a", "b", "c"] * 2
    fitted = FewShotClassifier.from_run(run).fit(images, labels)
    found = fitted.predict_proba(images[:4])
    trained = TrainedModel.open(run, "cpu")
    pictures = trained.pixels(images)
    expected = trained.adapt(pictures, labels_of(3), 3).probabilities(pictures[:4])
    assert np.allclose(found, expected.numpy(), atol=1e-6)
    assert np.allclose(pickle.loads(pickle.dumps(fitted)).predict_proba(images[:4]), found)
    assert fitted.influence(images[:2]).shape == (2, 6)


def test_views_may_be_mirrored():
    trained = model(inputs={**PHOTO, "mirror": True}, recipe=True)
    mirrored = TrainedModel(trained.config, trained._learned, trained._inputs, trained.device, "mirror")
    adapted = mirrored.adapt(pixels(6, PHOTO), labels_of(3), 3)
    queries = pixels(3, PHOTO, seed=1)
    assert torch.allclose(adapted.probabilities(queries), adapted.probabilities(queries.flip(-1)), atol=1e-5)
    features, logits = features_and_logits(adapted.network, mirrored.query_inputs(queries))
    assert (len(features), logits.shape) == (3, (3, 3))
