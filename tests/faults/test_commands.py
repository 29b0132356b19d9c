"""Commands that write files leave whole ones, whatever fails; a pretraining resumes to the same bits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from pathaware.inference.trained_model import TrainedModel
from pathaware.training.run_folder import PretrainRun
from tests.data.image_trees import class_folder
from tests.faults.layer import FAULTS, Ended, Fault, run
from tests.faults.test_faults import disturb, sound
from tests.inference.models import save_run

OLD = b"precious"


@dataclass(frozen=True)
class Written:
    """A command line and the files it writes into the folder WORK."""

    line: str
    names: tuple[str, ...]
    same: bool = True
    """The files are the same in every run; else their lengths are, but for some digits of times."""

    def call(self, given: Path, work: Path, fault: Fault = "count", at: int = 0, *more: str) -> Ended:
        words = self.line.replace("GIVEN", str(given)).replace("WORK", str(work)).split()
        return run([*words, *more], work, fault, at)


SUPPORT = "GIVEN/model --support GIVEN/letters"
WRITING = {
    "predict": Written(
        f"predict {SUPPORT} --images GIVEN/letters --out WORK/o.csv --show WORK/o.png",
        ("o.csv", "o.png"),
    ),
    "export": Written(
        f"export {SUPPORT} --to safetensors --script --out WORK/o.safetensors",
        ("o.safetensors", "o.py"),
        same=False,
    ),
    "export to torch": Written(f"export {SUPPORT} --to torch --out WORK/o.pt2", ("o.pt2",), same=False),
    "export to onnx": Written(f"export {SUPPORT} --to onnx --out WORK/o.onnx", ("o.onnx",), same=False),
    "export a learner": Written(
        "export GIVEN/model --learner --ways 2 --shots 1 --out WORK/o.onnx", ("o.onnx",), same=False
    ),
    "evaluate": Written("evaluate GIVEN/model --tasks 2 --record WORK/o.json", ("o.json",), same=False),
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and class folders of 12 images."""
    root = tmp_path_factory.mktemp("given")
    save_run(root / "model")
    for number, name in enumerate("abc"):
        class_folder(root / "letters" / name, 4, first=10 * number)
    for number, name in enumerate("xy"):
        class_folder(root / "others" / name, 2, first=10 * number)
    for number, name in enumerate(["train/a", "train/b", "train/c", "val/d", "val/e", "test/f"]):
        class_folder(root / "shapes" / name, 20, first=100 * number)
    line = ["data", "import", "shapes", "--from", str(root / "shapes"), "--data-dir", str(root / "data")]
    assert run([*line, "--size", "16"], root / "data").code == 0
    return root


def left_in(work: Path, fault: Fault) -> set[str]:
    """The names in a folder. A process that is killed may leave drafts, and so may one on a broken disk."""
    names = {path.name for path in work.iterdir()}
    if fault == "ENOSPC":  # a full disk allows to remove them
        return names
    return {name for name in names if not name.startswith(".") and not name.endswith(".new")}


def disturb_writing(
    command: Written, given: Path, work: Path, fault: Fault, at: int, *, replace: bool
) -> bool:
    """True if the fault was reached before the command had ended."""
    calm = work.with_name("calm")
    if not calm.exists():
        calm.mkdir()
        assert command.call(given, calm).code == 0
    work.mkdir()
    if replace:
        for name in command.names:
            (work / name).write_bytes(OLD)
    more = ["--replace"] if replace else []
    ended = command.call(given, work, fault, at, *more)
    sound(ended, fault)
    whole = {name: (calm / name).read_bytes() for name in command.names}
    left = left_in(work, fault)
    assert left <= set(whole), (fault, at, left)
    assert not replace or left == set(whole), (fault, at, left)
    for name in left:
        found = (work / name).read_bytes()
        new = found == whole[name] if command.same else abs(len(found) - len(whole[name])) < 100
        assert new or (replace and found == OLD), (fault, at, name)
    if ended.code != 0:
        again = command.call(given, work, "count", 0, "--replace")
        assert again.code == 0, (fault, at, again.errors)
    assert left_in(work, "kill") == set(whole)
    return ended.code != 0


@pytest.mark.parametrize(("name", "fault", "at"), [("predict", "kill", 3), ("export", "ENOSPC", 4)])
def test_files_are_whole_or_absent_after_a_fault_in_a_change(given, tmp_path, name, fault, at):
    assert disturb_writing(WRITING[name], given, tmp_path / "work", fault, at, replace=True)


@pytest.mark.slow
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("name", WRITING)
@pytest.mark.parametrize("fault", FAULTS)
def test_files_are_whole_or_absent_after_a_fault_in_every_change(given, tmp_path, name, fault, replace):
    at = 1
    while disturb_writing(WRITING[name], given, tmp_path / f"work-{at}", fault, at, replace=replace):
        at += 1
    assert at > 2


def disturb_learning(given: Path, work: Path, fault: Fault, at: int, *, replace: bool) -> bool:
    """True if the fault was reached before the classifier was saved."""
    work.mkdir()
    words = ["--model", str(given / "model"), "--out", str(work / "mine"), "--show", str(work / "wrong.png")]
    if replace:
        assert run(["learn", str(given / "others"), *words], work).code == 0
        words.append("--replace")
    line = ["learn", str(given / "letters"), *words]
    ended = run(line, work, fault, at)
    sound(ended, fault)
    (work / "x").mkdir()
    opened = run(["predict", str(work / "mine"), "--images", str(given / "letters")], work / "x")
    if replace or opened.code == 0:  # the old one or the new one, at every moment
        assert opened.code == 0, (fault, at, opened.errors)
        classes = TrainedModel.open(work / "mine").support.classes
        assert classes in ((("x", "y"), ("a", "b", "c")) if replace else (("a", "b", "c"),)), (fault, at)
    else:
        assert not (work / "mine").exists(), (fault, at)
    assert left_in(work, fault) <= {"x", "mine", "wrong.png"}, (fault, at)
    if ended.code != 0:
        again = run([*line, "--replace"] if not replace else line, work)
        assert again.code == 0, (fault, at, again.errors)
    assert TrainedModel.open(work / "mine").support.classes == ("a", "b", "c")
    assert {path.name for path in work.iterdir()} - {"wrong.png.new"} == {"x", "mine", "wrong.png"}
    return ended.code != 0


@pytest.mark.parametrize(
    ("fault", "at", "replace"), [("ENOSPC", 3, False), ("EROFS", 8, True), ("kill", 20, True)]
)
def test_a_classifier_survives_a_fault_in_some_changes(given, tmp_path, fault, at, replace):
    disturb_learning(given, tmp_path / "work", fault, at, replace=replace)


@pytest.mark.slow
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_classifier_survives_a_fault_in_every_change(given, tmp_path, fault, replace):
    at = 1
    while disturb_learning(given, tmp_path / f"work-{at}", fault, at, replace=replace):
        at += 1
    assert at > 10


def pretrain_line(given: Path) -> list[str]:
    changes = ("save=1", "validate=1", "batch=60", "precision=fp32", "device=cpu", "threads=1")
    return [
        *("pretrain", "shapes", "--data-dir", str(given / "data"), "--epochs", "3", "--width", "4", "--json"),
        *(word for change in changes for word in ("--set", change)),
    ]


@pytest.fixture(scope="module")
def calm(given: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[PretrainRun, int]:
    """An undisturbed pretraining, and the number of changes it makes to its folder."""
    folder = tmp_path_factory.mktemp("calm") / "run"
    ended = run([*pretrain_line(given), "--out", str(folder)], folder)
    assert ended.code == 0, ended.errors
    return PretrainRun.open(folder), ended.operations


def test_a_pretraining_survives_a_fault_in_some_changes(calm, given, tmp_path):
    done, operations = calm
    for number, fault in enumerate(FAULTS):
        at = operations * (1 + 2 * number) // (2 * len(FAULTS))
        disturb(pretrain_line(given), done, tmp_path / f"run-{at}", fault, at)


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_pretraining_survives_a_fault_in_every_change(calm, given, tmp_path, fault, resumed):
    done, operations = calm
    at, killed_at = 1, operations // 2 if resumed else 0
    while disturb(pretrain_line(given), done, tmp_path / f"run-{at}", fault, at, killed_at):
        at += 1
    assert at > 10
