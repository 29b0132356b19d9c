"""`pathaware learn`, saved classifiers, backbones of one's own, and warnings about unlike images."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from pathaware import UsageError
from pathaware.cli import main
from pathaware.cli.learn import _confusion_table
from pathaware.data import open_store
from pathaware.data.pixels import TypicalImages
from pathaware.inference import learning, prediction_sheet
from pathaware.inference.class_folders import LabelledFolder
from pathaware.inference.learning import (
    assign_folds,
    difference_hash,
    duplicates_across,
    near_duplicates,
    training_advice,
)
from pathaware.inference.predictions import Predictions, Score
from pathaware.inference.trained_model import SupportSet, TrainedModel, shipped
from tests.inference.models import class_folders
from tests.models.residual18 import pretrained

NAMES = ("oak", "fir", "ash")


@pytest.fixture(autouse=True)
def _single_precision(tmp_path, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("PATHAWARE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def photograph(kind: int, seed: int, size: int = 40) -> Image.Image:
    """Smooth coloured noise whose hue is that of its class."""
    random = np.random.default_rng([kind, seed])
    small = random.integers(40, 200, (5, 5, 3)).astype(float)
    small[..., kind % 3] += 55
    return Image.fromarray(small.astype(np.uint8)).resize((size, size), Image.Resampling.BICUBIC)


def write_classes(root: Path, count: int, first: int = 0, kinds: int = 3) -> Path:
    for kind in range(kinds):
        name = NAMES[kind] if kind < len(NAMES) else f"kind{kind:02d}"
        (root / name).mkdir(parents=True, exist_ok=True)
        for seed in range(first, first + count):
            photograph(kind, seed).save(root / name / f"{seed}.png")
    return root


def call(line: str, *arguments: object, code: int = 0) -> None:
    with pytest.raises(SystemExit) as left:
        main([*line.split(), *map(str, arguments)])
    assert (left.value.code or 0) == code


@pytest.fixture
def weights(tmp_path) -> Path:
    path = tmp_path / "weights.pt"
    torch.save({f"module.{n}": v for n, v in pretrained(10, channels=3).state_dict().items()}, path)
    return path


def own(weights: Path) -> tuple[object, ...]:
    return ("--model", "tests.models.residual18:resnet18", "--weights", weights, "--size", 32)


def drawn_supports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that receives the number of labelled images of every sheet that is drawn."""
    drawn: list[int] = []
    sheet_of = prediction_sheet.prediction_sheet

    def draw(title, support, *rest):
        drawn.append(len(support.labels))
        return sheet_of(title, support, *rest)

    monkeypatch.setattr(prediction_sheet, "prediction_sheet", draw)
    return drawn


def test_a_backbone_of_your_own_learns_labels_and_is_exported(tmp_path, weights, capsys, monkeypatch):
    """A ResNet-18 with running statistics: import, learn, measure, predict and export, without training."""
    trees = write_classes(tmp_path / "trees", 6)
    drawn = drawn_supports(monkeypatch)
    call("learn", trees, *own(weights), "--out", "found", "--json", "--show", "wrong.png")
    assert drawn == [18]  # each was learned by the classifiers of other folds
    result = json.loads(capsys.readouterr().out)
    assert result["classes"] == sorted(NAMES)
    assert (result["pictures"], result["held_out"], result["folds"]) == (18, 18, 5)
    assert {truth: sum(row.values()) for truth, row in result["confusion"].items()} == dict.fromkeys(NAMES, 6)
    assert len(result["wrong"]) == round(18 * (1 - result["accuracy"]))
    assert result["class_mean"] == pytest.approx(result["accuracy"])
    saved = json.loads(Path("found/learned.json").read_text(encoding="utf-8"))
    assert (saved["of"], saved["folds"], saved["accuracy"]) == (18, 5, result["accuracy"])
    assert saved["interval"] == result["interval"]
    with Image.open("wrong.png") as sheet:
        assert sheet.size[0] > 100
    weights.unlink()  # a saved classifier is complete
    new = write_classes(tmp_path / "new", 2, first=50)
    call("predict", "found", "--images", new, "--format", "json")
    labels = json.loads(capsys.readouterr().out)
    assert len(labels) == 6
    call("export", "found", "--to", "torch", "--out", "found.pt2", "--json")
    assert json.loads(capsys.readouterr().out)["largest_difference"] < 1e-4


def test_a_backbone_of_your_own_is_meta_trained_evaluated_and_exported(tmp_path, weights, capsys):
    """The same network on glyphs: FiLM adapters, and a head on cached features beside its baselines.

    The run with the head goes all the way: train, evaluate, predict and export.
    """
    grey = tmp_path / "grey.pt"
    torch.save(pretrained(10).state_dict(), grey)
    network = ("--model", "tests.models.residual18:resnet18", "--weights", grey)
    small = "--ways 3 --shots 1 --queries 2 --iterations 2 --tasks 2 --set training.validate=0 --json"
    call(f"train glyphs {small} --adapt adapters --out film", *network)
    varying = "--adapt head --method proto-pamela --set problem.varying=true"
    call(f"train glyphs {small} {varying} --out head", *network)
    capsys.readouterr()
    call("evaluate head --tasks 10 --ways 5 --shots 2 --baselines --queries alone --json")
    found = json.loads(capsys.readouterr().out)
    assert set(found["baselines"]) == {"nearest-mean", "logistic"}
    assert all(0.2 < each["accuracy"] < 1 for each in (found, *found["baselines"].values()))
    class_folders(tmp_path / "letters", {"bee": 2, "cat": 2})
    class_folders(tmp_path / "new", {"cat": 2}, first=50)
    labelled = ("--support", tmp_path / "letters")
    call("predict", "head", *labelled, "--images", tmp_path / "new", "--format", "json")
    assert {row["label"] for row in json.loads(capsys.readouterr().out)} <= {"bee", "cat"}
    call("export", "head", *labelled, "--to", "torch", "--out", "head.pt2", "--json")
    assert json.loads(capsys.readouterr().out)["largest_difference"] < 1e-4
    call("evaluate", "film", "--tasks", 2, "--baselines", code=2)
    assert "no frozen features" in capsys.readouterr().err
    call("train", "glyphs", *network, "--adapt", "tail", "--out", "x", code=2)
    call("train", "glyphs", "--set", "problem.varying=true", "--out", "x", code=2)
    assert "proto-pamela" in capsys.readouterr().err


def test_learning_refuses_what_it_cannot_use(tmp_path, weights, capsys):
    call("learn", write_classes(tmp_path / "few", 1), *own(weights), "--out", "a")
    out = capsys.readouterr().out
    assert "accuracy was not measured: no picture was held out" in out
    assert "meta-train" not in out
    call("learn", tmp_path / "few", *own(weights), "--out", "a", code=2)
    assert "--replace: is needed to replace the classifier a, which exists" in capsys.readouterr().err
    call("learn", tmp_path / "none", *own(weights), code=2)
    assert capsys.readouterr().err.startswith("error: DIR: ")
    call("learn", tmp_path / "few", "--model", "glyphs", "--weights", weights, "--out", "b", code=2)
    assert "is for a backbone" in capsys.readouterr().err


def test_only_those_with_many_classes_are_told_what_training_needs(tmp_path, weights, capsys):
    call("learn", write_classes(tmp_path / "many", 1, kinds=25), *own(weights), "--out", "a")
    assert "takes 25 classes with 6 images each; none of yours has that many" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "many" / NAMES[0])
    call("learn", tmp_path / "many", *own(weights), "--out", "b")
    assert "meta-train" not in capsys.readouterr().out


def test_what_training_needs_is_one_rule(tmp_path):
    labels = torch.arange(26).repeat_interleave(6)[:-1]  # one class has five images
    support = SupportSet(tuple(map(str, range(26))), torch.zeros(len(labels), 3, 8, 8).byte(), labels)
    advice = training_advice(tmp_path / "my birds", LabelledFolder(support, ()))
    assert "25 classes have 6 images or more" in advice
    assert "leave out the 1 smaller class, then pathaware data import" in advice
    assert f"--from '{tmp_path / 'my birds'}'" in advice
    few = LabelledFolder(SupportSet(("a", "b"), support.pixels[:7], labels[:7]), ())
    assert "one of yours has that many" in training_advice(tmp_path, few)
    guide = Path(__file__).parents[2] / "docs/own-data.md"
    assert "**25 classes of 6 images**" in guide.read_text(encoding="utf-8")


def test_classes_that_could_not_be_measured_are_named(tmp_path, weights, capsys):
    trees = write_classes(tmp_path / "trees", 1)
    write_classes(trees, 2, first=1, kinds=2)  # a single ash
    call("learn", trees, *own(weights), "--out", "a")
    assert "not measured, because no picture of it could be held out: ash\n" in capsys.readouterr().out
    call("learn", trees, *own(weights), "--out", "b", "--json")
    assert json.loads(capsys.readouterr().out)["unmeasured"] == ["ash"]
    write_classes(trees, 2, first=1)
    call("learn", trees, *own(weights), "--out", "c")
    assert "not measured" not in capsys.readouterr().out


def test_folders_of_a_split_are_recognised_and_duplicates_reported(tmp_path, weights, capsys):
    write_classes(tmp_path / "set/train", 4)
    write_classes(tmp_path / "set/test", 2, first=3)  # number 3 of each class is in both
    call("learn", tmp_path / "set", *own(weights), "--out", "a", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["classes"] == sorted(NAMES)
    assert found["held_out"] == 6
    assert "the folders train and test hold the same classes" in found["notes"][0]
    assert len(found["near_duplicates"]) >= 3
    assert any("nearly equal" in note for note in found["notes"])
    call("predict", "glyphs", "--support", tmp_path / "set", "--images", tmp_path / "set/test", code=2)
    assert "holds the folders test and train, not classes" in capsys.readouterr().err
    call("data", "import", "same", "--from", tmp_path / "set", code=2)
    assert "train and test hold the same 3 classes" in capsys.readouterr().err


def test_equal_pictures_of_two_classes_are_a_wrong_label(tmp_path, weights, capsys):
    trees = write_classes(tmp_path / "trees", 3)
    one, other = sorted(NAMES)[:2]
    for picture in sorted((trees / one).iterdir()):
        shutil.copy(picture, trees / other / f"copy-{picture.name}")
    call("learn", trees, *own(weights), "--out", "a")
    told = capsys.readouterr().out
    assert "(and 2 other pairs) are nearly equal but have different classes; one label may be wrong" in told
    assert "too good" not in told
    call("learn", trees, *own(weights), "--hold-out", 0, "--out", "b")  # none of a pair is held out
    assert "one label may be wrong" in capsys.readouterr().out


def test_unreadable_pictures_are_left_out_on_demand(tmp_path, weights, capsys):
    trees = write_classes(tmp_path / "trees", 2)
    (trees / "oak/empty.jpg").touch()
    call("learn", trees, *own(weights), "--out", "a", code=2)
    told = capsys.readouterr().err
    assert told.endswith("oak/empty.jpg: the file is empty; --skip-unreadable leaves such files out\n")
    call("learn", trees, *own(weights), "--out", "a", "--skip-unreadable", "--json")
    out, err = capsys.readouterr()
    assert err.endswith("oak/empty.jpg: the file is empty\n")
    found = json.loads(out)
    assert found["left_out"] == [err.rstrip("\n")]
    assert "left out 1 file that cannot be used" in found["notes"]
    assert found["pictures"] == 6


def test_two_equal_pictures_are_one_pair_of_near_duplicates(tmp_path, weights, capsys):
    """Each of them was learned when the other was held out."""
    rgb = np.random.default_rng(0).integers(0, 256, (2, 2, 32, 32, 3), dtype=np.uint8)
    for i, name in enumerate(("ash", "oak")):
        (tmp_path / "trees" / name).mkdir(parents=True)
        for j in range(2):
            Image.fromarray(rgb[i, j]).save(tmp_path / "trees" / name / f"{j}.png")
    shutil.copy(tmp_path / "trees/oak/1.png", tmp_path / "trees/oak/2.png")
    call("learn", tmp_path / "trees", *own(weights), "--out", "a", "--json")
    found = json.loads(capsys.readouterr().out)
    (pair,) = found["near_duplicates"]
    assert sorted(Path(name).name for name in pair) == ["1.png", "2.png"]
    assert any("2 held-out pictures are nearly equal to learned ones" in note for note in found["notes"])


def test_the_classes_are_counted_and_what_the_folder_holds_besides_is_named(tmp_path, weights, capsys):
    trees = write_classes(tmp_path / "trees", 4)
    write_classes(trees, 1, first=9, kinds=1)
    (trees / "elm").mkdir()
    (trees / ".hidden").mkdir()
    call("learn", trees, *own(weights), "--out", "a")
    out = capsys.readouterr().out
    assert out.startswith("learned 3 classes from 4 to 5 pictures each\nleft out, because")
    assert "there are no images in it: elm\n" in out
    assert "belong to that class" not in out
    (trees / "elm").rmdir()
    (trees / "fir/old").mkdir()
    photograph(1, 20).save(trees / "fir/old/20.png")
    call("learn", trees, *own(weights), "--out", "b", "--json")
    assert json.loads(capsys.readouterr().out)["notes"] == [
        "images in folders within a class folder belong to that class: fir"
    ]


def test_an_accuracy_on_few_pictures_has_a_wide_interval():
    score = Score({"oak": Counter(oak=9), "fir": Counter(oak=1)}, 0)
    assert score.interval == pytest.approx((0.5958, 0.9821), abs=1e-4)  # R: prop.test(9, 10, correct=FALSE)
    assert Score({"oak": Counter(oak=10)}, 0).interval == pytest.approx((0.7225, 1), abs=1e-4)


def test_a_saved_classifier_computes_no_features_of_its_own_pictures(tmp_path, weights, monkeypatch):
    call("learn", write_classes(tmp_path / "trees", 3), *own(weights), "--out", "a")
    plain = TrainedModel.open("a", "cpu")
    plain._features = {}
    fast = TrainedModel.open("a", "cpu")
    support = fast.support
    assert support is not None
    assert fast.memory is not None
    new = fast.pixels([photograph(0, 30)])
    task = (support.pixels, support.labels, len(support.classes))
    expected = plain.adapt(*task).probabilities(new)
    embedded = []
    body = fast.memory.network
    forward = body.forward
    monkeypatch.setattr(body, "forward", lambda x: embedded.append(len(x)) or forward(x))
    adapted = fast.adapt(*task)
    assert embedded == []
    assert torch.equal(adapted.probabilities(new), expected)
    assert embedded == [1]


def test_a_sheet_must_be_a_png(tmp_path, weights, capsys):
    call("learn", write_classes(tmp_path / "trees", 3), *own(weights), "--show", "wrong.jpg", code=2)
    assert "--show: must end in .png, not wrong.jpg" in capsys.readouterr().err


def test_photographs_given_to_the_glyph_model_cause_a_warning(tmp_path, capsys):
    """And glyphs do not."""
    trees = write_classes(tmp_path / "trees", 3)
    call("predict", "glyphs", "--support", trees, "--images", trees)
    errors = capsys.readouterr().err
    assert errors.startswith(
        "warning: 9 of 9 labelled pictures and 9 of 9 other pictures look unlike the images"
    )
    assert errors.count("\n") == 1
    glyphs, drawn = open_store("glyphs"), tmp_path / "drawn"
    test = glyphs.split("test")
    for name, start in zip("ab", test.starts.tolist(), strict=False):
        (drawn / name).mkdir(parents=True)
        for i in range(4):
            Image.fromarray(255 - glyphs.images[start + i, 0].numpy()).save(drawn / name / f"{i}.png")
    call("predict", "glyphs", "--support", drawn, "--images", drawn)
    assert capsys.readouterr().err == ""


def test_statistics_tell_drawings_from_photographs_and_survive_json():
    photographs = torch.stack(
        [torch.from_numpy(np.array(photograph(k, s))).permute(2, 0, 1) for k in range(3) for s in range(40)]
    )
    typical = TypicalImages.from_dict(json.loads(json.dumps(TypicalImages.of(photographs[:100]).to_dict())))
    assert (typical.distances(photographs[100:]) < 1.5).all()
    assert typical.warning(photographs[100:]) is None
    assert typical.warning(photographs[:0]) is None
    drawings = torch.full((5, 3, 40, 40), 255, dtype=torch.uint8)
    drawings[:, :, 10:12] = 0
    assert (typical.distances(drawings) > 2).all()
    assert "5 of 5 pictures look unlike" in typical.warning(drawings)
    mixed = torch.cat([photographs[:3], drawings[:1]])
    one = typical.warning(mixed)
    assert "1 of 4 pictures looks unlike" in one
    assert f"{typical.distances(drawings[:1]).item():.1f} times as far away as" in one
    two = typical.warning(photographs[:9], torch.cat([mixed, drawings[:1]]))
    assert two.startswith("2 of 5 labelled pictures look unlike")
    assert f"{typical.distances(drawings[:1]).item():.1f} times as far away (median) as" in two


def test_perceptual_hashes_find_scaled_and_recoded_images():
    pictures = [photograph(0, seed, 64) for seed in range(30)]
    changed = [picture.resize((50, 50)) for picture in pictures]
    first, second = (
        [difference_hash(np.array(p).transpose(2, 0, 1)) for p in each] for each in (pictures, changed)
    )
    pairs = near_duplicates(first, second)
    assert {(i, i) for i in range(30)} <= set(pairs)
    assert len(pairs) < 35
    blank = difference_hash(np.zeros((1, 8, 8), np.uint8))
    assert near_duplicates([blank], [blank]) == []


@pytest.mark.parametrize(
    ("columns", "header"),
    [("80", ["Turmfalke", "猫"]), ("40", ["1", "2"]), ("30", None), (None, ["Turmfalke", "猫"])],
)
def test_the_confusion_matrix_fits_the_terminal(columns, header, monkeypatch):
    """Names of columns that do not fit are numbers; a pipe has room for all names."""
    classes = ("Turmfalke", "猫")
    probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]], dtype=torch.float64)
    score = Score.of(
        Predictions(["1", "2", "3"], classes, probabilities), [classes[0], classes[1], classes[0]]
    )
    monkeypatch.setattr(sys.stdout, "isatty", lambda: columns is not None)
    monkeypatch.setenv("COLUMNS", columns or "20")
    table = _confusion_table(score, classes)
    assert (None if table is None else [*table.header[1:]]) == header
    if table is not None:
        assert [row.cells[1:] for row in table.rows] == [("1", "1"), ("·", "1")]
        assert table.numeric == [False, True, True]
        assert [row.cells[0] for row in table.rows] == (
            ["1 Turmfalke", "2 猫"] if header == ["1", "2"] else header
        )


def test_folds_divide_every_class_that_has_two_images():
    labels = torch.tensor([0] * 10 + [1] * 2 + [2] + [3] * 7)
    folds = assign_folds(labels, 0.2, seed=0)
    sizes = {label: folds[labels == label].bincount(minlength=5).tolist() for label in (0, 1, 3)}
    assert sizes == {0: [2] * 5, 1: [1, 1, 0, 0, 0], 3: [2, 2, 1, 1, 1]}
    assert folds[labels == 2].tolist() == [-1]
    assert torch.equal(folds, assign_folds(labels, 0.2, seed=0))
    assert not torch.equal(folds, assign_folds(labels, 0.2, seed=1))
    assert assign_folds(labels, 0, seed=0).eq(-1).all()
    for share in (0.01, 1e-320):  # as many folds as the largest class has images
        assert assign_folds(labels, share, seed=0).max() == 9
    assert assign_folds(labels, 0.9, seed=0).max() == 1
    assert assign_folds(torch.arange(3), 0.2, seed=0).eq(-1).all()


class Remembering:
    """A model that knows the labels of the images it learned, and takes all others for the fourth class."""

    memory = None
    learned: ClassVar[list[int]] = []

    def adapt(self, pixels: torch.Tensor, labels: torch.Tensor, classes: int) -> Remembering:
        adapted = Remembering()
        adapted.known = {image.numpy().tobytes(): label for image, label in zip(pixels, labels, strict=True)}
        self.learned.append(len(labels))
        return adapted

    def probabilities(self, pixels: torch.Tensor) -> torch.Tensor:
        chosen = [int(self.known.get(image.numpy().tobytes(), 3)) for image in pixels]
        return torch.eye(4, dtype=torch.float64)[chosen]


def numbered(*counts: int) -> SupportSet:
    """Different images, so many of each class."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    pixels = torch.arange(len(labels), dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    return SupportSet(tuple("abcd"[: len(counts)]), pixels.contiguous(), labels)


def test_each_image_is_predicted_by_a_classifier_that_had_not_learned_it(monkeypatch):
    monkeypatch.setattr(Remembering, "learned", [])
    support = numbered(10, 2, 1, 4)
    names = [str(i) for i in range(17)]
    learned = learning.learn(Remembering(), support, names)
    assert learned.test.tolist() == [*range(12), *range(13, 17)]
    assert learned.predictions.images == [names[i] for i in learned.test]
    assert learned.predictions.labels == ["d"] * 16  # an image that was learned would have its own label
    assert learned.score.given == {"a": Counter(d=10), "b": Counter(d=2), "d": Counter(d=4)}
    assert (learned.fold_count, learned.skipped, learned.unmeasured) == (5, 0, ["c"])
    assert Remembering.learned == [13, 13, 14, 14, 15, 17]
    given = learning.learn(Remembering(), support, names, torch.tensor([0, 1, 10, 16]))
    assert (given.test.tolist(), given.fold_count) == ([0, 1, 10, 16], 1)
    with pytest.raises(UsageError, match="class b has no image to learn from"):
        learning.learn(Remembering(), support, names, torch.tensor([10, 11]))
    with pytest.raises(UsageError, match=r"hold_out: must be 0 to 0.5, not 0.6"):
        learning.learn(Remembering(), support, names, hold_out=0.6)
    none = learning.learn(Remembering(), support, names, hold_out=0)
    assert (none.score, none.fold_count, len(none.test)) == (None, 0, 0)


def test_clear_mistakes_come_first_and_their_labels_are_questioned(tmp_path, weights, capsys, monkeypatch):
    table = {"a": [0.9, 0.1], "b": [0.4, 0.6], "c": [0.04, 0.96], "d": [0.2, 0.8]}  # all of class a
    support = numbered(4, 1)
    names = [*table, "e"]
    probabilities = torch.tensor([*table.values()], dtype=torch.float64)
    predictions = Predictions(list(table), support.classes, probabilities)
    score = Score.of(predictions, ["a"] * 4)
    folds = torch.tensor([0, 1, 2, 3, -1])
    learned = learning.Learned(support, tuple(names), None, folds, predictions, score)
    assert [names[i] for i in learned.wrong] == ["c", "d", "b"]
    assert [names[i] for i in learned.suspicious] == ["c"]
    trees = write_classes(tmp_path / "trees", 2)
    monkeypatch.setattr(learning, "learn", lambda *_, **__: learned)
    monkeypatch.setattr(learning, "duplicates_across", lambda *_: [])
    monkeypatch.setattr(learning, "save_classifier", lambda *_, **__: None)
    call("learn", trees, *own(weights), "--out", "a")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("wrong: ")]
    assert lines == [
        "wrong: c is a, labelled b (0.96); is it in the right folder?",
        "wrong: d is a, labelled b (0.80)",
        "wrong: b is a, labelled b (0.60)",
    ]
    call("learn", trees, *own(weights), "--out", "a", "--json")
    assert [row["suspicious"] for row in json.loads(capsys.readouterr().out)["wrong"]] == [True, False, False]


@pytest.mark.parametrize(("seconds", "folds"), [(5.9, 5), (7, 4), (11, 2), (100, 1)])
def test_cross_validation_ends_when_one_more_fold_would_take_too_long(seconds, folds, monkeypatch):
    now = 0.0

    def adapt(model: Remembering, *task: object) -> Remembering:
        nonlocal now
        now += seconds
        return usual(model, *task)

    usual = Remembering.adapt
    monkeypatch.setattr(Remembering, "adapt", adapt)
    monkeypatch.setattr(learning.time, "monotonic", lambda: now)
    learned = learning.learn(Remembering(), numbered(10, 1, 2, 10), [str(i) for i in range(23)])
    assert learned.fold_count == folds
    assert len(learned.test) == learned.score.total == 4 * folds + min(2, folds)
    assert learned.skipped == 22 - len(learned.test)
    assert learned.unmeasured == ["b"]  # the first fold has an image of each other class


def test_an_accuracy_on_a_part_of_the_pictures_says_so(tmp_path, weights, capsys, monkeypatch):
    monkeypatch.setattr(learning, "VALIDATION_SECONDS", 0.0)
    drawn = drawn_supports(monkeypatch)
    trees = write_classes(tmp_path / "trees", 5)
    call("learn", trees, *own(weights), "--out", "a", "--show", "wrong.png")
    told = capsys.readouterr().out
    assert "accuracy was measured on 3 of 15 pictures; on all of them it would take more than 0 s" in told
    assert "of 3 held-out pictures right; 95 %" in told
    assert drawn == [12]  # without those that were held out


def test_classes_of_unequal_size_have_a_mean_accuracy_over_classes(tmp_path, weights, capsys):
    trees = write_classes(tmp_path / "trees", 4)
    call("learn", trees, *own(weights), "--out", "a")
    told = capsys.readouterr().out
    assert "of 12 pictures right, each by a classifier that had not learned it; 95 % interval" in told
    assert "mean over classes" not in told
    write_classes(trees, 4, first=4, kinds=1)
    call("learn", trees, *own(weights), "--out", "b")
    assert "; mean over classes 0." in capsys.readouterr().out
    score = Score({"oak": Counter(oak=90, fir=10), "fir": Counter(fir=1, oak=3)}, 0)
    assert (score.accuracy, score.class_mean) == (91 / 104, pytest.approx(0.575))


def test_duplicates_count_where_one_is_learned_while_the_other_is_held_out():
    pixels = torch.from_numpy(np.stack([np.array(photograph(0, s)).transpose(2, 0, 1) for s in (0, 1, 0, 2)]))
    support = SupportSet(("a",), pixels, torch.zeros(4, dtype=torch.long))
    assert duplicates_across(support, torch.tensor([0, 0, 1, 1])) == [(2, 0), (0, 2)]
    assert duplicates_across(support, torch.tensor([0, 1, 0, 1])) == []
    assert duplicates_across(support, torch.tensor([-1, -1, 0, -1])) == [(0, 2)]


def test_order_and_names_of_classes_change_nothing(weights):
    from pathaware.core.settings import trust
    from pathaware.inference.learning import untrained_model

    trust({"a": {"model": "tests.models.residual18:resnet18"}})
    model = untrained_model("tests.models.residual18:resnet18", weights, 32, "cpu")
    pixels = model.pixels([photograph(k, s) for k, s in [(0, 1), (0, 2), (1, 1), (2, 1), (2, 2), (2, 3)]])
    labels, queries = torch.tensor([0, 0, 1, 2, 2, 2]), model.pixels([photograph(1, 9), photograph(2, 9)])
    expected = model.adapt(pixels, labels, 3).probabilities(queries)
    names = torch.tensor([2, 0, 1])
    found = model.adapt(pixels.flip(0), names[labels].flip(0), 3).probabilities(queries)
    assert torch.allclose(found[:, names], expected, atol=1e-6)
    assert model.memory is not None
    again = model.memory(queries)
    assert torch.allclose(again, model.memory.backbone(model.image_input.normalised(queries)), atol=1e-5)


def test_damaged_classifiers_are_refused(tmp_path, weights, capsys):
    call("learn", write_classes(tmp_path / "few", 1), *own(weights), "--out", "a")
    capsys.readouterr()
    for content in (b"", b"x" * 100):
        Path("a/support.safetensors").write_bytes(content)
        with pytest.raises(UsageError, match=r"support\.safetensors cannot be read"):
            TrainedModel.open("a")


def test_every_shipped_model_has_a_card(capsys):
    call("models", "--json")
    cards = json.loads(capsys.readouterr().out)
    assert [card["name"] for card in cards] == shipped()
    for name in shipped():
        call("models", name)
        assert "not for" in capsys.readouterr().out
    call("models", "nothing", code=2)
