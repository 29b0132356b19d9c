"""Whatever a run or classifier folder of somebody else holds, a command uses it or refuses it in one line."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from random import Random

import pytest

from tests.data.image_trees import class_folder
from tests.fuzz.calling import ended, fresh_folder
from tests.fuzz.folders import damage
from tests.fuzz.lines import CLASSIFIER, FROZEN, MODEL, PRETRAINED, RUN

LINES = {
    CLASSIFIER: "predict HERE --images few; serve HERE --port 0; "
    "export HERE --to safetensors --out o.safetensors",
    MODEL: "predict HERE --support few --images few; evaluate HERE --tasks 1; report HERE --tasks 1; "
    "learn few --model HERE --out new; train --resume HERE",
    FROZEN: "predict HERE --support few --images few --unknown 0.1; learn few --model HERE --out new",
    RUN: "evaluate HERE --tasks 1; train --resume HERE; plot HERE; report HERE --tasks 1",
    PRETRAINED: "pretrain --resume HERE",
}
CASES = [(folder, line) for folder, lines in LINES.items() for line in lines.split("; ")]


def try_folder(folders: Path, seed: int) -> None:
    random = Random(seed)
    name, line = random.choice(CASES)
    with fresh_folder() as here:
        shutil.copytree(folders / name, here / "in" / "theirs")
        for number, label in enumerate("abc"):
            class_folder(here / "few" / label, 2, first=10 * number)
        damaged = damage(here / "in" / "theirs", random)
        before = {path.name for path in (here / "in").iterdir()}
        code, out, errors = ended(line.replace("HERE", "in/theirs").split())
        case = f"seed {seed}: {line} with {damaged}: {errors or out}"
        lines = [each for each in errors.splitlines() if not each.startswith("warning: ")]
        assert code in (0, 1, 2), case
        assert sum(each.startswith("error: ") for each in lines) == (code != 0), case
        assert all(each.isprintable() and len(each) < 2100 for each in lines), case
        assert "nan" not in out.lower(), case
        assert {path.name for path in (here / "in").iterdir()} == before, case


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be looked up in a network."""

    def connect(*_: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", connect)


@pytest.mark.parametrize("part", range(4))
def test_damaged_folders_are_used_or_refused_in_one_line(folders, alone, part):
    for seed in range(15 * part, 15 * (part + 1)):
        try_folder(folders.root, seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(50))
def test_five_thousand_damaged_folders_are_used_or_refused_in_one_line(folders, alone, part):
    for seed in range(1000 + 100 * part, 1000 + 100 * (part + 1)):
        try_folder(folders.root, seed)
