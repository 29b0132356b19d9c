"""The five commands of docs/own-data.md work as written, with smaller settings."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from PIL import Image

from pathaware.data.catalogue import open_store
from pathaware.training.problems import Classification
from tests.calling import pathaware
from tests.forked import Command

GUIDE = Path(__file__).parents[1] / "docs/own-data.md"
SHORTER = {
    "data": "--size 16",
    "train": "--iterations 2 --width 4 --set training.validation_tasks=5",
    "evaluate": "--tasks 4",
    "serve": "--port 0",
}


def draw(folder: Path, classes: range, count: int) -> None:
    """Save colour images, with one folder per class."""
    images = open_store("glyphs").images
    for c in classes:
        (folder / f"class {c}").mkdir(parents=True)
        for i in range(count):
            picture = Image.fromarray(images[20 * c + i, 0].numpy()).convert("RGB").resize((100, 90))
            picture.save(folder / f"class {c}" / f"{i}.jpg")


@pytest.fixture
def somebody(tmp_path, monkeypatch):
    """Make the folders that the guide assumes."""
    draw(tmp_path / "birds", range(25), 6)  # with the glyphs that other tests use, too
    draw(tmp_path / "labelled", range(30, 33), 2)
    draw(tmp_path / "new", range(30, 33), 3)
    monkeypatch.setenv("PATHAWARE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(Classification, "evaluation_tasks", 10)
    return tmp_path


def test_five_commands_lead_from_a_folder_of_pictures_to_a_served_model(somebody):
    (block, *_) = re.findall(r"```console\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    commands = [shlex.split(line) for line in re.findall(r"\$ pathaware (.*)", block)]
    assert [command[0] for command in commands] == ["data", "train", "evaluate", "predict", "serve"]
    for command in commands[:4]:
        done = pathaware(*command, *shlex.split(SHORTER.get(command[0], "")), cwd=somebody)
        assert done.code == 0, done.out + done.err
    assert done.out.count(".jpg") == 9  # a label for every new picture
    with Image.open(somebody / "sheet.png") as sheet:
        assert sheet.width > 300
    assert served(commands[4], somebody)["name"] == "mine"
    assert labelled_in_python(somebody) in ("['kestrel']", "['hobby']")


def labelled_in_python(folder: Path) -> str:
    """Return what the guide's Python example prints."""
    for i, name in enumerate(("a.jpg", "b.jpg", "IMG_2201.jpg")):
        shutil.copy(folder / "birds" / f"class {i}" / "0.jpg", folder / name)
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def served(command: list[str], folder: Path) -> dict[str, object]:
    """Start the server and return what `/api/model` says."""
    server = Command([*command, *SHORTER["serve"].split()], folder)
    try:
        server.wait_until(lambda: "\n" in server.out)
        address = re.search(r"http://[\d.:]+", server.out)[0]
        with urllib.request.urlopen(f"{address}/api/model") as answer:
            return json.load(answer)
    finally:
        server.send(signal.SIGTERM)
        assert server.wait() == 0, server.err
