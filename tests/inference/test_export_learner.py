"""The learner as an ONNX file."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pathaware.core.errors import UsageError
from pathaware.inference.export.learner import Learner, export_learner, open_learner
from pathaware.inference.trained_model import TrainedModel, arrange
from pathaware.training.config import Config
from pathaware.training.trainer import build
from tests.inference.models import CPU, model, pixels

SMALL = {"size": 16, "channels": 1, "ink": True, "mean": [0.1], "std": [0.3]}


def small(steps: int = 1) -> TrainedModel:
    config = Config.from_dict(
        {
            "problem": {"name": "classification", "data": "glyphs", "ways": 2, "shots": 1, "width": 2},
            "method": {"name": "pamela", "steps": steps, "rate": 0.1, "skip": 1},
            "training": {"device": "cpu"},
        }
    )
    torch.manual_seed(0)
    learned = {k: v.float() for k, v in build(config, CPU, SMALL).state_dict().items()}
    return TrainedModel(config, learned, SMALL, CPU)


def test_the_module_that_is_written_computes_what_the_package_does():
    trained = small(steps=3)
    module = Learner(trained.learner(2), trained, temperature=1.0).eval()
    support, labels, queries = pixels(4, SMALL, seed=5), torch.tensor([1, 0, 1, 0]), pixels(3, SMALL, seed=6)
    order = arrange(support, labels, 2)
    with torch.no_grad():
        found = module(support[order], labels[order], queries)
    expected = trained.adapt(support, labels, 2).probabilities(queries)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_a_file_learns_new_classes_as_the_package_does(tmp_path):
    trained = small()
    done = export_learner(trained, 2, 1, tmp_path / "learner.onnx", tasks=3)
    assert done.difference < 1e-4
    learn = open_learner(done.path)
    support, labels = pixels(2, SMALL, seed=5), torch.tensor([1, 0])
    order = arrange(support, labels, 2)
    queries = pixels(4, SMALL, seed=6)
    found = learn(support[order].numpy(), labels[order].numpy(), queries.numpy())
    expected = trained.adapt(support, labels, 2).probabilities(queries).numpy()
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < 1e-4
    other = learn(support[order].numpy(), 1 - labels[order].numpy(), queries.numpy())
    assert np.abs(other - found).max() > 1e-3  # it learns: other labels give other answers


def test_what_has_no_written_out_gradients_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no hand-written gradients") as error:
        export_learner(model("prototypical"), 2, 1, tmp_path / "a.onnx")
    assert error.value.field == "learner"
    with pytest.raises(UsageError, match=r"must end in \.onnx"):
        export_learner(model(), 2, 1, tmp_path / "a.pt2")
    with pytest.raises(UsageError, match="at least 1"):
        export_learner(model(), 2, 0, tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_shipped_model_learns_in_onnxruntime(tmp_path):
    trained = TrainedModel.open("glyphs", "cpu")
    assert export_learner(trained, 5, 1, tmp_path / "glyphs.onnx", tasks=100).difference < 1e-4
