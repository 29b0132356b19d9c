from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from pathaware import FewShotClassifier, FewShotRegressor, UsageError
from pathaware.data.catalogue import open_store
from pathaware.inference.learning import learn, save_classifier
from pathaware.inference.trained_model import SupportSet, TrainedModel


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="module")
def glyphs():
    """Ten drawings each of four test classes, `[40, 28, 28]`, and their names."""
    store = open_store("glyphs")
    starts = store.split("test").starts[:40:10].tolist()
    images = np.concatenate([store.images[s : s + 10, 0].numpy() for s in starts])
    return images, np.repeat(["alif", "ba", "ta", "tha"], 10)


def test_a_few_examples_are_enough_for_new_classes(glyphs):
    few, rest, few_names, rest_names = train_test_split(
        *glyphs, train_size=8, stratify=glyphs[1], random_state=0
    )
    classifier = FewShotClassifier.from_run("glyphs").fit(few, few_names)
    assert classifier.score(rest, rest_names) > 0.8  # chance is 0.25
    assert classifier.classes_.tolist() == ["alif", "ba", "ta", "tha"]
    assert classifier.steps_[0].accuracy < classifier.steps_[-1].accuracy


def test_probabilities_sum_to_one_and_lead_to_the_label(glyphs):
    images, names = glyphs
    classifier = FewShotClassifier().fit(images[::3], names[::3])
    probabilities = classifier.predict_proba(images)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert (classifier.classes_[probabilities.argmax(1)] == classifier.predict(images)).all()


def test_it_takes_part_in_cross_validation_and_pipelines(glyphs):
    inverted = FunctionTransformer(lambda images: 255 - images)  # ink on paper: to the model it is the same
    pipeline = make_pipeline(inverted, FewShotClassifier())
    scores = cross_val_score(pipeline, *glyphs, cv=3)
    assert scores.mean() > 0.8
    np.testing.assert_array_equal(scores, cross_val_score(clone(FewShotClassifier()), *glyphs, cv=3))


def test_pictures_may_come_in_any_form(glyphs, tmp_path):
    images, names = glyphs
    classifier = FewShotClassifier().fit(images[::3], names[::3])
    expected = classifier.predict_proba(images[:4])
    paths = [tmp_path / f"{i}.png" for i in range(4)]
    for path, image in zip(paths, images, strict=False):
        Image.fromarray(image).save(path)
    forms = {
        "paths": paths,
        "names of files": [str(path) for path in paths],
        "PIL": [Image.fromarray(image) for image in images[:4]],
        "colour": np.repeat(images[:4, :, :, None], 3, axis=3),
        "channels first": torch.from_numpy(images[:4])[:, None],
        "fractions": images[:4] / 255,
        "bytes": [path.read_bytes() for path in paths],
    }
    for name, pictures in forms.items():
        np.testing.assert_allclose(classifier.predict_proba(pictures), expected, atol=1e-6, err_msg=name)


def test_labels_may_be_numbers(glyphs):
    images, names = glyphs
    numbers = np.unique(names, return_inverse=True)[1] * 10 - 5
    classifier = FewShotClassifier().fit(images[::3], numbers[::3])
    assert classifier.predict(images[:2]).dtype == numbers.dtype
    assert set(classifier.predict(images)) <= {-5, 5, 15, 25}


def test_a_fitted_classifier_can_be_pickled(glyphs):
    images, names = glyphs
    classifier = FewShotClassifier().fit(images[::3], names[::3])
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(images), classifier.predict_proba(images))


def test_a_saved_classifier_is_fitted_to_its_own_images(glyphs, tmp_path):
    images, names = glyphs
    model = TrainedModel.open("glyphs", "cpu")
    pixels = model.pixels(images[::3])
    classes = ("tha", "ta", "ba", "alif")  # not sorted, unlike those of an estimator
    labels = torch.tensor([classes.index(name) for name in names[::3]])
    support = SupportSet(classes, pixels, labels)
    save_classifier(learn(model, support, [str(i) for i in labels]), model, tmp_path / "saved")
    classifier = FewShotClassifier.from_run(tmp_path / "saved", device="cpu")
    again = FewShotClassifier(device="cpu").fit(images[::3], names[::3])
    assert classifier.classes_.tolist() == ["alif", "ba", "ta", "tha"]
    np.testing.assert_allclose(classifier.predict_proba(images), again.predict_proba(images), atol=1e-5)
    classifier.fit(images[::5], names[::5] == "ta")
    assert classifier.classes_.tolist() == [False, True]


@pytest.mark.parametrize(
    ("pictures", "labels", "said"),
    [
        (["nowhere.png", "nowhere.png"], [0, 1], "nowhere.png: cannot be read"),
        (np.full((2, 8, 8), 300), [0, 1], r"X\[0\]: integers must lie between 0 and 255"),
        (np.full((2, 8, 8), 1.5), [0, 1], "must lie between 0 and 1"),
        (np.zeros((2, 8)), [0, 1], r"array of shape \(8,\) is not an image"),
        (np.zeros((2, 8, 8)), [0, 0], "y: 1 class; 2 to 100"),
        (np.zeros((2, 8, 8)), [0, 1, 1], "y: 3 labels for 2 images"),
        (np.zeros((101, 8, 8)), list(range(101)), "y: 101 classes; 2 to 100"),
        (np.zeros((0, 8, 8)), [], "no images"),
    ],
)
def test_what_cannot_be_learned_is_named(pictures, labels, said):
    with pytest.raises(ValueError, match=said):
        FewShotClassifier().fit(pictures, labels)


def test_a_run_of_another_kind_is_refused(tmp_path):
    with pytest.raises(UsageError, match="sine was trained on sine-k10, not on images"):
        FewShotClassifier.from_run("sine")
    with pytest.raises(UsageError, match="glyphs was trained on glyphs-5way-1shot"):
        FewShotRegressor.from_run("glyphs")
    with pytest.raises(UsageError, match="is not a run folder"):
        FewShotClassifier.from_run(tmp_path)


def test_a_wave_is_learned_from_ten_points():
    random = np.random.default_rng(0)
    errors = []
    for _ in range(10):
        amplitude, phase = random.uniform(1, 5), random.uniform(0, np.pi)
        x = random.uniform(-5, 5, (10, 1))
        regressor = FewShotRegressor.from_run("sine").fit(x, amplitude * np.sin(x[:, 0] + phase))
        new = np.linspace(-5, 5, 100)[:, None]
        errors.append(np.mean((regressor.predict(new) - amplitude * np.sin(new[:, 0] + phase)) ** 2))
    assert np.mean(errors) < 0.3  # about 4.5 without learning


def test_a_function_of_more_inputs_is_refused():
    with pytest.raises(ValueError, match="X has 2 features, but sine was trained on 1"):
        FewShotRegressor().fit(np.zeros((3, 2)), np.zeros(3))


def test_a_model_is_read_again_only_if_its_files_have_changed(glyphs, tmp_path, monkeypatch):
    import os
    import shutil

    from pathaware.inference.trained_model import SHIPPED
    from pathaware.training.run_folder import Run

    run, reads, learned = tmp_path / "run", [], Run.learned
    shutil.copytree(SHIPPED / "glyphs", run)
    monkeypatch.setattr(Run, "learned", lambda self: reads.append(self.folder) or learned(self))
    classifier = FewShotClassifier.from_run(run, device="cpu")
    for _ in range(3):
        classifier.fit(*glyphs)
    assert len(reads) == 1
    os.utime(run / "checkpoint.safetensors", ns=(0, 0))
    classifier.fit(*glyphs)
    assert len(reads) == 2
    (run / "checkpoint.safetensors").unlink()
    with pytest.raises(UsageError):
        classifier.fit(*glyphs)


def test_a_single_image_where_a_list_is_expected_is_refused():
    for single in ("new", Path("new"), b"GIF"):
        with pytest.raises(UsageError, match="X: must be a list of images"):
            FewShotClassifier("glyphs", device="cpu").fit(single, ["a"])


def test_a_regressor_reads_its_run_once(monkeypatch):
    from pathaware.inference import estimators

    estimators._cached.cache_clear()
    opened, read = [], estimators.Run.open
    monkeypatch.setattr(estimators.Run, "open", lambda folder: opened.append(folder) or read(folder))
    x = np.linspace(-4, 4, 10)[:, None]
    values = [FewShotRegressor("sine", device="cpu").fit(x, np.sin(x[:, 0])).predict(x) for _ in range(3)]
    assert len(opened) == 1
    assert all((each == values[0]).all() for each in values)
    other = FewShotRegressor("sine", device="cpu").fit(x, np.cos(x[:, 0])).predict(x)
    assert not (other == values[0]).all()
