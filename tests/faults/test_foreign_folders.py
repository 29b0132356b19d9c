"""Folders from somebody else, and two processes at work in one folder: nothing is lost, nothing gets out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pathaware.core.errors import UsageError
from pathaware.core.writing import MARK
from pathaware.inference.trained_model import SUPPORT, TrainedModel
from pathaware.models.backbones import timm_model
from pathaware.training.checksummed import CHECKPOINT, read_checksummed, write_checksummed
from pathaware.training.config import Config
from pathaware.training.run_files import METRICS
from pathaware.training.train import train
from tests.data.image_trees import class_folder
from tests.forked import Command
from tests.fuzz.calling import ended, quietly
from tests.inference.models import save_run

SINE = {"problem": {"name": "sine"}, "method": {"name": "maml"}, "training": {"iterations": 4, "save": 2}}
PRECIOUS = b"precious\n"


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, an image model, a finished run on waves, one that was stopped, and class folders."""
    root = tmp_path_factory.mktemp("given")
    save_run(root / "model")
    for number, name in enumerate("abc"):
        class_folder(root / "letters" / name, 4, first=10 * number)
    train(Config.from_dict(SINE), root / "waves")
    shutil.copytree(root / "waves", root / "stopped")
    lines = (root / "stopped" / METRICS).read_bytes().splitlines(keepends=True)
    (root / "stopped" / METRICS).write_bytes(b"".join(lines[:-1]))
    here = Path.cwd()
    os.chdir(root)
    try:
        assert quietly(["learn", "letters", "--model", "model", "--out", "birds"]).code == 0
    finally:
        os.chdir(here)
    return root


@pytest.fixture
def here(given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of all this, which is the current folder."""
    folder = tmp_path / "here"
    shutil.copytree(given, folder)
    monkeypatch.chdir(folder)
    return folder


def sound(line: str) -> None:
    """The command ended, well or with one line."""
    called = quietly(line.split(), seconds=30)
    assert called.code in (0, 1, 2), called
    assert sum(each.startswith("error: ") for each in called.lines) == (called.code != 0), called
    assert "nan" not in called.out.lower(), called.out


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


READING = [
    "predict birds --images letters",
    "predict model --support letters --images letters --out birds/labels.csv",
    "evaluate waves --tasks 2",
    "export birds --to safetensors --out birds/o.safetensors",
    "learn letters --model model --out more --show birds/sheet.png",
    "data list --data-dir .",
]


@pytest.mark.parametrize("line", READING)
def test_commands_leave_alone_what_is_not_theirs(here, line):
    for name in (".birds.old/x", ".birds.partial/x", ".waves.old/x", ".letters.old/x", "birds/o.csv.new",
                 "birds/labels.csv.new", "birds/sheet.png.new", "waves/a.new", "waves/state-7.safetensors",
                 "waves/run.lock", "birds/.birds.lock"):  # fmt: skip
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_bytes(PRECIOUS)
    before = contents(here)
    sound(line)
    now = contents(here)
    assert {name: now.get(name) for name in before} == before


WRITING = [
    "train --resume stopped",
    "report waves --tasks 2",
    "plot waves",
    "predict birds --images letters --out birds/labels.csv",
    "learn letters --model model --out birds --replace --show birds/sheet.png",
]


@pytest.mark.parametrize("line", WRITING)
def test_no_link_leads_out_of_a_folder(here, tmp_path, line):
    """Every name that a command might write is a link to a file or a folder elsewhere."""
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    written = ("report.html", "labels.csv.new", "sheet.png.new", "report.html.new",
               "metrics.jsonl.new", "checkpoint.safetensors.new")  # fmt: skip
    read = (METRICS, "provenance.json", CHECKPOINT, "calibration.json")
    for run in ("stopped", "waves", "model", "birds"):
        for name in (*written, *read):
            target = outside / f"{run} {name}"
            place = here / run / name
            if place.exists():
                shutil.move(place, target)
            elif name in written:
                target.write_bytes(PRECIOUS)
            place.symlink_to(target)  # to a file that is not there, if commands read it
        (here / run / "figures").symlink_to(outside / "folder")
    for name in (".birds.partial", ".birds.old"):
        (here / name).symlink_to(outside / "folder")
    before = contents(outside)
    called = quietly(line.split())
    assert called.code == (2 if "plot" in line else 0), called
    assert contents(outside) == before


FILES = ["config.toml", METRICS, "provenance.json", "calibration.json", "typical.json", "measured.json",
         CHECKPOINT, SUPPORT, "histograms.safetensors", "state-2.safetensors"]  # fmt: skip


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
@pytest.mark.parametrize("name", FILES)
def test_special_files_are_refused_at_once(here, name, kind):
    for run in ("birds", "model", "stopped", "waves"):
        place = here / run / name
        place.unlink(missing_ok=True)
        if kind == "folder":
            place.mkdir()
        elif kind == "pipe":
            os.mkfifo(place)
        else:
            place.symlink_to("/dev/zero" if kind == "device" else name)
    for line in ("predict birds --images letters", "evaluate waves --tasks 2", "train --resume stopped"):
        sound(line)


def not_finite(tensors: dict[str, torch.Tensor]) -> None:
    next(value for value in tensors.values() if value.is_floating_point()).view(-1)[0] = torch.nan


def other_type(tensors: dict[str, torch.Tensor]) -> None:
    tensors.update({name: value.to(torch.complex64) for name, value in tensors.items()})


def other_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors.update({name: value[None] for name, value in tensors.items()})


@pytest.mark.parametrize("change", [not_finite, other_type, other_shape])
@pytest.mark.parametrize("name", [CHECKPOINT, SUPPORT])
def test_tensors_of_another_kind_are_refused(here, name, change: Callable[[dict[str, torch.Tensor]], None]):
    tensors, about = read_checksummed(here / "birds" / name)
    if name == SUPPORT and change is not_finite:
        tensors["features"] = torch.full((12, 3), torch.nan)
    change(tensors)
    write_checksummed(here / "birds" / name, tensors, about)
    called = quietly(["predict", "birds", "--images", "letters"])
    assert called.code == 2, called
    assert name in called.errors
    assert len(called.lines) == 1


@pytest.mark.parametrize(
    "changes",
    [{"std": [0.0]}, {"std": [float("nan")]}, {"mean": ["x"]}, {"size": 20000}, {"channels": 2}],
)
def test_inputs_that_no_network_has_are_refused(here, changes):
    tensors, about = read_checksummed(here / "birds" / CHECKPOINT)
    about["inputs"] |= changes
    write_checksummed(here / "birds" / CHECKPOINT, tensors, about)
    called = quietly(["predict", "birds", "--images", "letters"])
    assert called.code == 2, called
    assert len(called.lines) == 1
    assert CHECKPOINT in called.errors


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train sine --set training.threads=1000000", "must be at most 1,024"),
        ("learn letters --model timm:resnet10t", "cannot be imported (torchvision is of another PyTorch)"),
        ("train glyphs --set problem.model_name=timm:resnet10t", "cannot be imported"),
    ],
)
def test_what_once_was_a_traceback_is_one_line(here, monkeypatch, line, said):
    def broken(name: str) -> None:
        raise RuntimeError("torchvision is of another PyTorch")

    monkeypatch.setattr("pathaware.models.backbones.import_module", broken)
    code, _, errors = ended(line.split())
    assert (code, errors.count("\n")) == (2, 1), errors
    assert said in errors


def test_folders_in_folders_without_end_are_one_line(here):
    for name in ("deep", *["d"] * 1500):
        os.mkdir(name)
        os.chdir(name)
    os.chdir(here)
    command = Command(["learn", "deep", "--model", "model"], here)
    try:
        assert command.wait() == 2
    finally:
        subprocess.run(["rm", "-rf", "deep"], check=True)  # pytest could not
    assert command.err == "error: DIR: deep: cannot be read (maximum recursion depth exceeded)\n"


def test_a_run_folder_does_not_make_a_model_hub_be_asked(monkeypatch):
    monkeypatch.setattr("pathaware.core.settings._trusted", set())
    monkeypatch.setattr("pathaware.models.backbones.import_module", lambda name: pytest.fail("imported"))
    for name in ("hf-hub:evil/tracker", "local-dir:/", "hf_hub:x"):
        with pytest.raises(UsageError, match="PATHAWARE_TRUST=timm"):
            timm_model(f"timm:{name}", 5, 3, pretrained=False)


def to_full_disk() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def to_nothing() -> None:
    os.close(1)
    sys.stdout = None  # type: ignore[assignment]


@pytest.mark.parametrize(("output", "code"), [(to_full_disk, 1), (to_nothing, 0)])
def test_a_full_or_closed_output_is_one_line_or_nothing(here, output, code):
    command = Command(["methods"], here, output)
    assert command.wait() == code
    said = "error: standard output cannot be written (No space left on device)\n"
    assert command.err == (said if code else "")


def learn_at_once(here: Path, processes: int) -> None:
    """Learn the same classifier in several processes, and leave a whole one and nothing else."""
    line = ["learn", "letters", "--model", "model", "--out", "birds", "--replace"]
    before = {path.name for path in here.iterdir()}
    commands = [Command(line, here) for _ in range(processes)]
    for command in commands:
        command.wait()
        assert "Traceback" not in command.err
    assert TrainedModel.open(here / "birds").support.classes == ("a", "b", "c")
    assert {path.name for path in here.iterdir()} == before


def test_processes_that_replace_one_classifier_at_once_leave_a_whole_one(here):
    learn_at_once(here, 3)


@pytest.mark.slow
def test_processes_that_replace_one_classifier_again_and_again_leave_a_whole_one(here):
    for _ in range(25):
        learn_at_once(here, 3)


def test_drafts_of_processes_that_are_gone_are_removed_and_no_others(here):
    gone = here / f"{MARK}0123456789abcdef"
    gone.write_bytes(b"half")
    (here / f"{MARK}fedcba9876543210").mkdir()
    others = [here / f"{MARK}notes", here / f"{MARK}0123456789abcdef.txt"]
    for other in others:
        other.write_bytes(PRECIOUS)
    sound("predict birds --images letters --out labels.csv")
    assert not gone.exists()
    assert not (here / f"{MARK}fedcba9876543210").exists()
    assert all(other.read_bytes() == PRECIOUS for other in others)
