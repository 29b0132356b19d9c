"""Trained runs as scikit-learn estimators: `fit` on a few examples, `predict` for new ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.few_shot import FewShotLearner
from pathaware.data.pixels import ImageLike
from pathaware.data.store import counted
from pathaware.inference.change_ways import MAX_CLASSES
from pathaware.inference.influence import explain, suspicious_labels
from pathaware.inference.open_set import unknown_images
from pathaware.inference.trained_model import (
    AdaptationStep,
    AdaptedClassifier,
    SupportSet,
    TrainedModel,
    find_run,
)
from pathaware.training.evaluation import Views
from pathaware.training.run_folder import Run

Images = Sequence[ImageLike] | NDArray[Any] | Tensor
Stamps = tuple[tuple[str, int, int], ...]
T = TypeVar("T")


class FewShotClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """An image classifier that learns from a few examples per class.

    `fit` adapts a trained run to 2 to 100 classes. Images are paths, PIL images, arrays or tensors
    (`[H, W]`, `[H, W, 3]`, `[3, H, W]`; integers up to 255 or floats up to 1), and are scaled to the size the
    network was trained with. The prediction for an image does not depend on the other images.

    >>> from pathaware.data import open_store
    >>> glyphs = open_store("glyphs").images
    >>> classifier = FewShotClassifier.from_run("glyphs")
    >>> classifier.fit(glyphs[[0, 1, 20, 21]], ["one", "one", "another", "another"]).predict(glyphs[[2, 22]])
    array(['one', 'another'], dtype='<U7')

    - `run`: the folder of a run on images or of a classifier that `pathaware learn` saved, or the name of a
      shipped model (`glyphs`). `from_run` returns a saved classifier fitted to the images it was saved with.
    - `device`: `auto`, `cpu`, `cuda` or `cuda:1`.
    - `unknown`: the share of images of known classes that `predict` may call unknown by mistake, such as
      0.05; by default it never does. Unknown images have the label -1, or "unknown" if labels are texts.
    - `views`: `single`, or `mirror` for the mean over each image and its mirror image (see `TrainedModel`).

    After `fit`: `classes_`, and `steps_`, the loss and accuracy on the examples after each inner step.
    """

    classes_: NDArray[Any]
    steps_: list[AdaptationStep]

    def __init__(
        self,
        run: str | Path = "glyphs",
        *,
        device: str = "auto",
        unknown: float | None = None,
        views: Views = "single",
    ) -> None:
        self.run = run
        self.device = device
        self.unknown = unknown
        self.views = views

    @classmethod
    def from_run(
        cls,
        run: str | Path,
        *,
        device: str = "auto",
        unknown: float | None = None,
        views: Views = "single",
    ) -> Self:
        """Return the classifier of a run; one that `pathaware learn` saved is fitted to its own images."""
        model = _opened(TrainedModel.open, run, device, views)
        classifier = cls(run, device=device, unknown=unknown, views=views)
        if model.support is not None:
            names = np.array(model.support.classes)
            classifier._adapt(model, model.support.pixels, names[model.support.labels.numpy()])
        return classifier

    def fit(self, X: Images, y: ArrayLike) -> Self:
        """Adapt to images and their labels, of any sortable type."""
        model = self._trained()
        pixels = self._pixels(model, X)
        labels = column_or_1d(y, warn=True)
        assert_all_finite(labels, input_name="y")
        with warnings.catch_warnings():
            # With one image for each of many classes scikit-learn suspects a regression target.
            warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%")
            check_classification_targets(labels)
        if len(labels) != len(pixels):
            raise ValueError(f"y: {counted(len(labels), 'label')} for {counted(len(pixels), 'image')}")
        self._adapt(model, pixels, labels)
        return self

    def _adapt(self, model: TrainedModel, pixels: Tensor, labels: NDArray[Any]) -> None:
        """Adapt to pixels `[S, C, size, size]` in 0…255 with labels `[S]`."""
        classes, indices = np.unique(labels, return_inverse=True)
        if not 2 <= len(classes) <= MAX_CLASSES:
            raise ValueError(f"y: {counted(len(classes), 'class')}; 2 to {MAX_CLASSES} can be learned")
        if self.unknown is not None and classes.dtype == np.bool_:
            raise ValueError("y: True and False leave no label for unknown images; use texts or numbers")
        if self.unknown is not None and self._unknown_label(classes) in classes.tolist():
            raise ValueError(f"y: {self._unknown_label(classes)!r} is the label of unknown images")
        self._adapted: AdaptedClassifier = model.adapt(pixels, torch.from_numpy(indices), len(classes))
        names = tuple(str(name) for name in classes)
        self._support = SupportSet(names, pixels, torch.from_numpy(indices))
        self.steps_ = list(self._adapted.steps)
        self.classes_ = classes

    def predict_proba(self, X: Images) -> NDArray[np.float64]:
        """Return class probabilities `[N, classes]`, in the order of `classes_`."""
        check_is_fitted(self)
        pixels = self._pixels(self._adapted, X)
        probabilities: NDArray[np.float64] = self._adapted.probabilities(pixels).numpy()
        return probabilities

    def predict(self, X: Images) -> NDArray[Any]:
        """Return the most probable class of every image, or the label of unknown images (see `unknown`)."""
        best = self.predict_proba(X).argmax(1)
        labels: NDArray[Any] = self.classes_[best]
        if self.unknown is None:
            return labels
        label = self._unknown_label(self.classes_)
        kind = np.result_type(labels.dtype, np.array(label).dtype)
        return np.where(self.is_unknown(X, self.unknown), np.array(label, dtype=kind), labels)

    def is_unknown(self, X: Images, share: float = 0.05) -> NDArray[np.bool_]:
        """Return True for images of no class, and by mistake for about `share` of those of known classes."""
        check_is_fitted(self)
        pixels = self._pixels(self._adapted, X)
        try:
            return np.array(unknown_images(self._trained(), self._adapted, self._support, pixels, share))
        except UsageError as error:
            raise ValueError(f"unknown: {error.message}") from None

    def influence(self, X: Images) -> NDArray[np.float64]:
        """Return the influence `[N, examples]` of the examples on the predicted class of every image.

        See `pathaware.inference.influence`. Positive values support the prediction.
        """
        check_is_fitted(self)
        pixels = self._pixels(self._adapted, X)
        classes = torch.from_numpy(self.predict_proba(X).argmax(1))
        values: NDArray[np.float64] = (
            explain(self._trained(), self._support, pixels, classes).double().numpy()
        )
        return values

    def suspicious_labels(self) -> list[int]:
        """Return the indices of examples whose labels may be wrong, the most suspicious first."""
        check_is_fitted(self)
        return [each.image for each in suspicious_labels(self._trained(), self._support)]

    def _trained(self) -> TrainedModel:
        return _opened(TrainedModel.open, self.run, self.device, self.views)

    @staticmethod
    def _unknown_label(classes: NDArray[Any]) -> Any:
        return -1 if np.issubdtype(classes.dtype, np.number) else "unknown"

    def _pixels(self, model: TrainedModel | AdaptedClassifier, X: Images) -> Tensor:
        if isinstance(X, (str, bytes, PathLike)):
            raise UsageError("must be a list of images; write [image] for a single one", field="X")
        try:
            pixels = model.image_input.stack(X, "X")
        except UsageError as error:
            raise ValueError(str(error)) from None
        if not len(pixels):
            raise ValueError("X: no images; at least one is needed")
        return pixels

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.classifier_tags.poor_score = True  # scikit-learn's data are unlike its training data
        return tags


class FewShotRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """A regressor that learns a function from a few of its points, by a run trained on such functions.

    >>> x = np.linspace(-4, 4, 10)[:, None]
    >>> regressor = FewShotRegressor.from_run("sine").fit(x, 3 * np.sin(x[:, 0] + 1))
    >>> bool(abs(regressor.predict([[0.5]]) - 3 * np.sin(1.5)) < 0.3)
    True

    `run` is the folder of a run on functions, or the shipped model `sine`; `device` as for
    `FewShotClassifier`. Values are not scaled: bring them to the range the run was trained on.
    """

    n_features_in_: int

    def __init__(self, run: str | Path = "sine", *, device: str = "auto") -> None:
        self.run = run
        self.device = device

    @classmethod
    def from_run(cls, run: str | Path, *, device: str = "auto") -> Self:
        """Return the regressor of a run, after checking that the run exists."""
        _opened(_read_learner, run, device)
        return cls(run, device=device)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Adapt to points `X [n, features]` of a function with values `y [n]`."""
        learner, features = _opened(_read_learner, self.run, self.device)
        points, values = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        x = self._tensor(learner, points)
        if x.shape[1] != features:
            raise ValueError(f"X has {x.shape[1]} features, but {self.run} was trained on {features}")
        self._network = learner.adapt(x, torch.tensor(values)[:, None].to(x)).eval()
        return self

    @torch.no_grad()
    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the function's values `[n]` at `X [n, features]`."""
        check_is_fitted(self)
        points = validate_data(self, X, reset=False, dtype=np.float64)
        values = self._network(self._tensor(self._network, points))[:, 0]
        predictions: NDArray[np.float64] = values.double().cpu().numpy()
        return predictions

    def _tensor(self, network: nn.Module, points: NDArray[np.float64]) -> Tensor:
        return torch.tensor(points).to(next(network.parameters()))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # scikit-learn's functions are unlike those it was trained on
        return tags


def _read_learner(run: str | Path, device: str) -> tuple[FewShotLearner, int]:
    """The learner of a run and its number of features."""
    opened = Run.open(find_run(run))
    if not opened.config.problem.regression:
        raise UsageError(
            f"{run} was trained on {opened.config.problem.label}; use FewShotClassifier", field="run"
        )
    _, inputs = opened.learned()
    return opened.load(device).eval(), int(inputs["features"])


def _opened(read: Callable[..., T], run: str | Path, *how: str) -> T:
    """The result of `read` for a run, from a cache unless its files have changed.

    `cross_val_score` fits the same estimator many times.
    """
    folder = find_run(run)
    try:
        files = [(path.name, path.stat()) for path in sorted(folder.iterdir())]
    except OSError:  # `read` says what is wrong
        return read(run, *how)
    stamps = tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in files)
    found: T = _cached(read, str(folder.resolve()), str(run), how, stamps)
    return found


@lru_cache(maxsize=8)
def _cached(read: Callable[..., Any], folder: str, run: str, how: tuple[str, ...], stamps: Stamps) -> Any:
    return read(run, *how)
