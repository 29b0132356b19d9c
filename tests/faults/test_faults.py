"""Whatever fails while a folder is written, nothing is lost: a run resumes to the same bits."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pathaware.data.store import ImageStore
from pathaware.training.run_files import CONFIG, RunFolder
from pathaware.training.run_folder import Run
from tests.data.image_trees import class_folder
from tests.faults.layer import FAULTS, Ended, Fault, run
from tests.training.runs import assert_same_end

TRAIN = [
    "train", "sine", "--iterations", "6", "--set", "training.save=2", "--set", "training.validate=3",
    "--set", "training.validation_tasks=2", "--set", "training.histograms=2", "--set", "problem.queries=5",
    "--set", "training.compile=off", "--json",
]  # fmt: skip


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, int]:
    """An undisturbed run, and the number of changes it makes to its folder."""
    folder = tmp_path_factory.mktemp("calm") / "run"
    ended = run([*TRAIN, "--out", str(folder)], folder)
    assert ended.code == 0, ended.errors
    return Run.open(folder), ended.operations


def sound(ended: Ended, fault: Fault) -> None:
    """A killed process says nothing; any other ends well, or in one line."""
    if fault == "kill":
        assert ended.code in (0, -9), ended.errors
        return
    assert ended.code in (0, 1, 2), ended.errors
    assert "Traceback" not in ended.errors
    assert sum(line.startswith("error: ") for line in ended.lines) == (ended.code != 0), ended.errors


def disturb(
    begin: list[str], calm: RunFolder, folder: Path, fault: Fault, at: int, killed_at: int = 0
) -> bool:
    """Disturb a training, or one that is resumed after it was killed; True if it was before its end."""
    line, resume = [*begin, "--out", str(folder)], [begin[0], "--resume", str(folder), "--json"]
    if killed_at:
        run(line, folder, "kill", killed_at)
    ended = run(resume if killed_at else line, folder, fault, at)
    sound(ended, fault)
    started = (folder / CONFIG).exists() and (folder / CONFIG).stat().st_size
    again = run(resume if started else line, folder)
    assert again.code == 0, (fault, at, again.errors)
    assert_same_end(type(calm).open(folder), calm)
    left = [p.name for p in folder.iterdir() if p.suffix in (".new", ".lock") or p.name.startswith("state-")]
    assert not left, (fault, at)
    return ended.code != 0


def test_a_run_changes_its_folder_in_many_ways(calm):
    assert calm[1] > 60


@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_survives_a_fault_in_some_changes(calm, tmp_path, fault):
    run_, operations = calm
    for at in range(1 + FAULTS.index(fault), operations + 1, operations // 2):
        disturb(TRAIN, run_, tmp_path / f"run-{at}", fault, at)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_survives_a_fault_in_every_change(calm, tmp_path, fault):
    run_, operations = calm
    for at in range(1, operations + 1):
        disturb(TRAIN, run_, tmp_path / f"run-{at}", fault, at)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_resumed_run_survives_a_fault_in_every_change(calm, tmp_path, fault):
    run_, operations = calm
    at = 1
    while disturb(TRAIN, run_, tmp_path / f"run-{at}", fault, at, operations // 2):
        at += 1
    assert at > 10


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source")
    for number, name in enumerate(["train/a", "train/b", "val/c", "test/d"]):
        class_folder(root / name, 2, first=10 * number)
    return root


def disturb_import(source: Path, data: Path, fault: Fault, at: int, *, replace: bool) -> bool:
    line = ["data", "import", "mine", "--from", str(source), "--data-dir", str(data), "--size", "8"]
    if replace:
        assert run(line, data).code == 0
        line.append("--replace")
    ended = run(line, data, fault, at)
    sound(ended, fault)
    listed = run(["data", "list", "--data-dir", str(data)], data)
    assert listed.code == 0
    assert "unusable" not in listed.errors
    if replace:
        ImageStore.open(data / "mine").verify()  # the old one or the new one, at every moment
    if ended.code != 0:
        # Killed after the last rename, the import is complete, and only --replace would make it again.
        again = run(line if replace or not (data / "mine").exists() else [*line, "--replace"], data)
        assert again.code == 0, (fault, at, again.errors)
    store = ImageStore.open(data / "mine")
    store.verify()
    assert [c.name for c in store.manifest.classes] == ["a", "b", "c", "d"]
    # The file of a lock, which the next import takes over and removes, is harmless.
    assert [name for name in os.listdir(data) if not name.endswith("lock")] == ["mine"]
    return ended.code != 0


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_import_survives_a_fault_in_some_changes(photographs, tmp_path, fault, replace):
    for at in range(1 + FAULTS.index(fault), 40, 17):
        disturb_import(photographs, tmp_path / f"data-{at}", fault, at, replace=replace)


@pytest.mark.slow
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_import_survives_a_fault_in_every_change(photographs, tmp_path, fault, replace):
    at = 1
    while disturb_import(photographs, tmp_path / f"data-{at}", fault, at, replace=replace):
        at += 1
    assert at > 10
