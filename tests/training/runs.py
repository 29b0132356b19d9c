"""Small runs for the tests of stopping, resuming and damage."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import torch

from pathaware.training.checksummed import read_checksummed
from pathaware.training.config import Config
from pathaware.training.run_folder import Run
from tests.training.fits import in_folder
from tests.training.test_classification import SMALL
from tests.training.test_training import config


def sine(**training) -> Config:
    small = {"iterations": 1000, "save": 7, "validate": 50, "validation_tasks": 5, "histograms": 20}
    return config(**{**small, **training})


def glyphs(iterations: int = 200) -> Config:
    training = {
        "iterations": iterations,
        "tasks": 1,
        "save": 3,
        "validate": 50,
        "validation_tasks": 2,
        "threads": 1,
    }
    return Config.from_dict(
        {
            "problem": {**SMALL, "queries": 1, "width": 4},
            "method": {"name": "pamela", "steps": 2},
            "training": training,
        }
    )


def stopped_run(folder: Path) -> Run:
    """A run stopped after 22 iterations, with states after 10 and 20, a checkpoint and histograms."""
    shutil.copytree(_stopped(), folder)
    return Run.open(folder)


@cache
def _stopped() -> Path:
    """The run that each test gets a copy of."""
    folder = Path(tempfile.mkdtemp()) / "run"
    atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    with in_folder(Run.create(folder, sine(validate=5, histograms=5))) as fit:
        for _ in range(22):
            fit.advance()
    return folder


def rows(run: Run) -> list[dict]:
    """The metrics without the time."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in run.metrics()]


def assert_same_end(run: Run, other: Run) -> None:
    """The files of two runs are equal to the last bit."""
    assert run.finished
    assert rows(run) == rows(other)
    names = {path.name for path in other.folder.glob("*.safetensors")}
    assert {path.name for path in run.folder.glob("*.safetensors")} == names
    for name in names:
        (tensors, about), (others, about_other) = (read_checksummed(r.folder / name) for r in (run, other))
        assert about == about_other
        assert tensors.keys() == others.keys()
        assert all(torch.equal(tensors[key], others[key]) for key in tensors)
