"""Trained runs as scikit-learn estimators: `fit` on a few examples, `predict` for new ones."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.learner import FewShotLearner
from pathaware.data.pixels import Picture
from pathaware.inference.change_ways import MOST_CLASSES
from pathaware.inference.trained_model import Adapted, Step, TrainedModel, find_run
from pathaware.training.run_folder import Run

Pictures = Sequence[Picture] | NDArray[Any] | Tensor


class FewShotClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier of pictures that learns from a few of each class.

    `fit` adapts a trained run to 2 to 100 classes. Pictures are paths, PIL images, arrays or tensors
    (`[H, W]`, `[H, W, 3]`, `[3, H, W]`; whole numbers to 255 or fractions to 1), and are scaled to what the
    network was trained on. Each is answered by itself: what else is asked changes nothing.

    >>> from pathaware.datasets import open_store
    >>> glyphs = open_store("glyphs").images
    >>> classifier = FewShotClassifier.from_run("glyphs")
    >>> classifier.fit(glyphs[[0, 1, 20, 21]], ["one", "one", "another", "another"]).predict(glyphs[[2, 22]])
    array(['one', 'another'], dtype='<U7')

    - `run`: the folder of a run on images, or the name of a model that ships with the package (`glyphs`).
    - `device`: `auto`, `cpu`, `cuda` or `cuda:1`.

    After `fit`: `classes_`, and `steps_`, how well the examples were told apart after each inner step.
    """

    classes_: NDArray[Any]
    steps_: list[Step]

    def __init__(self, run: str | Path = "glyphs", *, device: str = "auto") -> None:
        self.run = run
        self.device = device

    @classmethod
    def from_run(cls, run: str | Path, *, device: str = "auto") -> Self:
        """The classifier of this run; an error if there is none."""
        TrainedModel.open(run, device)
        return cls(run, device=device)

    def fit(self, X: Pictures, y: ArrayLike) -> Self:
        """Adapt to pictures and their labels, of any kind that can be sorted."""
        model = TrainedModel.open(self.run, self.device)
        pixels = self._pixels(model, X)
        labels = column_or_1d(y, warn=True)
        assert_all_finite(labels, input_name="y")
        with warnings.catch_warnings():
            # With one picture of each of many classes scikit-learn wonders whether these are classes at all.
            warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%")
            check_classification_targets(labels)
        if len(labels) != len(pixels):
            raise ValueError(f"y: {len(labels)} labels for {len(pixels)} pictures")
        classes, places = np.unique(labels, return_inverse=True)
        if not 2 <= len(classes) <= MOST_CLASSES:
            found = f"{len(classes)} class{'' if len(classes) == 1 else 'es'}"
            raise ValueError(f"y: {found}; 2 to {MOST_CLASSES} can be learned")
        target = torch.from_numpy(places)
        self._adapted: Adapted = model.adapt(pixels, target, len(classes))
        self.steps_ = list(self._adapted.steps)
        self.classes_ = classes
        return self

    def predict_proba(self, X: Pictures) -> NDArray[np.float64]:
        """The probability of every class, in the order of `classes_`: `[N, classes]`."""
        check_is_fitted(self)
        pixels = self._pixels(self._adapted, X)
        found: NDArray[np.float64] = self._adapted.probabilities(pixels).numpy()
        return found

    def predict(self, X: Pictures) -> NDArray[Any]:
        """The most probable class of every picture."""
        chosen = self.predict_proba(X).argmax(1)
        found: NDArray[Any] = self.classes_[chosen]
        return found

    def _pixels(self, model: TrainedModel | Adapted, X: Pictures) -> Tensor:
        try:
            pixels = model.pictures.stack(X, "X")
        except UsageError as error:
            raise ValueError(str(error)) from None
        if not len(pixels):
            raise ValueError("X: no pictures; at least one is needed")
        return pixels

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.classifier_tags.poor_score = True  # pictures that look like nothing it was trained on
        return tags


class FewShotRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A function of numbers that is learned from a few of its points, by a run trained on such functions.

    >>> x = np.linspace(-4, 4, 10)[:, None]
    >>> regressor = FewShotRegressor.from_run("sine").fit(x, 3 * np.sin(x[:, 0] + 1))
    >>> bool(abs(regressor.predict([[0.5]]) - 3 * np.sin(1.5)) < 0.3)
    True

    `run` is the folder of a run on functions, or the model `sine` that ships with the package; `device` as
    for `FewShotClassifier`. Numbers are taken as they are: scale them to what the run has seen.
    """

    n_features_in_: int

    def __init__(self, run: str | Path = "sine", *, device: str = "auto") -> None:
        self.run = run
        self.device = device

    @classmethod
    def from_run(cls, run: str | Path, *, device: str = "auto") -> Self:
        """The regressor of this run; an error if there is none."""
        _opened(run, device)
        return cls(run, device=device)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Adapt to points `X [n, features]` of a function with values `y [n]`."""
        learner, features = _opened(self.run, self.device)
        points, values = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        x = self._read_by(learner, points)
        if x.shape[1] != features:
            raise ValueError(f"X has {x.shape[1]} features, but {self.run} was trained on {features}")
        self._network = learner.adapt(x, torch.tensor(values)[:, None].to(x)).eval()
        return self

    @torch.no_grad()
    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """The function's values at `X [n, features]`: `[n]`."""
        check_is_fitted(self)
        points = validate_data(self, X, reset=False, dtype=np.float64)
        values = self._network(self._read_by(self._network, points))[:, 0]
        found: NDArray[np.float64] = values.double().cpu().numpy()
        return found

    def _read_by(self, network: nn.Module, points: NDArray[np.float64]) -> Tensor:
        return torch.tensor(points).to(next(network.parameters()))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # of functions unlike those it was trained on
        return tags


def _opened(run: str | Path, device: str) -> tuple[FewShotLearner, int]:
    opened = Run.open(find_run(run))
    if not opened.config.problem.regression:
        raise UsageError(
            f"{run} was trained on {opened.config.problem.label}; use FewShotClassifier", field="run"
        )
    _, inputs = opened.learned()
    return opened.load(device).eval(), int(inputs["features"])
