"""A sweep loses nothing, whatever fails while its folder is written; a server reads its model or says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.faults.layer import FAULTS, Ended, Fault, run
from tests.inference.models import save_run

FILE = """
[problem]
name = "sine"
points = 10
queries = 5
[method]
name = "maml"
steps = 1
[training]
iterations = 4
tasks = 1
save = 2
compile = "off"
[sweep]
training.seed = [0, 1]
"""


def sweep(folder: Path, fault: Fault = "count", at: int = 0) -> Ended:
    file = folder.parent / "sweep.toml"
    file.write_text(FILE)
    return run(["sweep", str(file), "--out", str(folder), "--tasks", "2"], folder, fault, at)


def results(folder: Path) -> dict[str, object]:
    """The metrics of all runs, without times and places."""
    paths = sorted((folder / "results").glob("*.json"))
    return {path.name: json.loads(path.read_text())["result"] for path in paths}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """An undisturbed sweep, and the number of changes it makes to its folder."""
    folder = tmp_path_factory.mktemp("calm") / "out"
    ended = sweep(folder)
    assert ended.code == 0, ended.errors
    assert len(results(folder)) == 2
    return folder, ended.operations


def disturb(calm: Path, folder: Path, fault: Fault, at: int) -> None:
    folder.parent.mkdir()
    ended = sweep(folder, fault, at)
    assert ended.code in ((0, -9) if fault == "kill" else (0, 1, 2)), (fault, at, ended.errors)
    assert "Traceback" not in ended.errors, (fault, at, ended.errors)
    assert sum(line.startswith("error: ") for line in ended.lines) <= 1, (fault, at, ended.errors)
    assert ended.code <= 0 or ended.lines, (fault, at)  # it said why
    again = sweep(folder)
    assert again.code == 0, (fault, at, again.errors)
    assert "failed" not in again.errors
    assert results(folder) == results(calm)
    assert not list(folder.rglob("*.new")), (fault, at)
    assert not list(folder.rglob("*.lock")), (fault, at)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_sweep_survives_a_fault_in_a_change(calm, tmp_path, fault):
    folder, operations = calm
    assert operations > 60
    at = operations * (1 + 2 * FAULTS.index(fault)) // (2 * len(FAULTS))
    disturb(folder, tmp_path / str(at) / "out", fault, at)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_sweep_survives_a_fault_in_every_change(calm, tmp_path, fault):
    folder, operations = calm
    for at in range(1, operations + 1):
        disturb(folder, tmp_path / str(at) / "out", fault, at)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_run(tmp_path_factory.mktemp("model") / "run")


def serve(model: Path, folder: Path, fault: Fault = "count", at: int = 0, *, reads: bool = False) -> Ended:
    return run(["serve", str(model), "--port", "0"], folder, fault, at, reads=reads)


def test_a_server_changes_no_file_when_it_starts(model):
    ended = serve(model, Path("/"))
    assert (ended.code, ended.errors, ended.operations) == (0, "", 0)


@pytest.mark.parametrize("fault", ["EIO", pytest.param("EACCES", marks=pytest.mark.slow)])
def test_a_server_whose_model_cannot_be_read_says_so_in_one_line(model, fault):
    calm = serve(model, model, reads=True)
    assert (calm.code, calm.errors) == (0, "")
    assert calm.operations >= 2  # the configuration and the checkpoint
    for at in range(1, calm.operations + 1):
        ended = serve(model, model, fault, at, reads=True)
        assert ended.code == 2, (at, ended.errors)
        assert len(ended.lines) == 1, (at, ended.errors)
        assert ended.lines[0].startswith("error: "), (at, ended.errors)
        assert str(model) in ended.lines[0]
