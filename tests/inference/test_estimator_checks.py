"""scikit-learn's own checks of estimators.

They are made for tables of numbers, and are not run for estimators that read pictures. Here a subclass reads
each row of a table as a picture, and differs in nothing else; so does one of the regressor, whose network has
one input, and reads a row as its mean.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import validate_data

from pathaware.inference.estimators import FewShotClassifier, FewShotRegressor
from pathaware.training.config import Config
from pathaware.training.meta_training import build
from pathaware.training.run_folder import Run


class RowsAsPictures(FewShotClassifier):
    def _pixels(self, model, X):
        rows = validate_data(self, X, reset=not hasattr(self, "_adapted"), dtype=np.float64)
        side = math.ceil(math.sqrt(rows.shape[1]))
        pictures = np.zeros((len(rows), side * side))
        pictures[:, : rows.shape[1]] = 1 / (1 + np.exp(-rows))
        return super()._pixels(model, pictures.reshape(-1, side, side))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


class RowsAsMeans(FewShotRegressor):
    def _tensor(self, network, points):
        return super()._tensor(network, points.mean(1, keepdims=True))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Small networks at their start: what is checked is how estimators behave, not how well they do."""
    folder = tmp_path_factory.mktemp("runs")
    images = {"name": "classification", "data": "glyphs", "ways": 5, "shots": 1, "width": 4}
    for name, problem in (("pictures", images), ("waves", {"name": "sine"})):
        config = Config.from_dict({"problem": problem, "method": {"name": "pamela"}})
        Run.create(folder / name, config).save(build(config), 0)
    return folder


@pytest.fixture(autouse=True)
def _where_the_runs_are(runs, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(runs)


@parametrize_with_checks([RowsAsPictures("pictures", device="cpu"), RowsAsMeans("waves", device="cpu")])
def test_an_estimator_keeps_the_rules_of_scikit_learn(estimator, check):
    check(estimator)
