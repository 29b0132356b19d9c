"""Ctrl-C ends every long command within two seconds, without a traceback and without half a file."""

from __future__ import annotations

import os
import signal
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.image_trees import class_folder
from tests.forked import Command

SECONDS = 2.0
"""Between Ctrl-C and the end of the process, of processor time where other processes slow this one down."""

LONG = {
    "evaluate": "evaluate sine --tasks 1000000",
    "evaluate images": "evaluate glyphs --tasks 1000000",
    "reproduce": "reproduce table3 --only k5-maml --iterations 1000000 --out out",
    "bench": "bench --rows glyphs --only pathaware --repeats 100000 --json bench.json",
    "bench --scaling": "bench --scaling --rows steps --repeats 100000 --json bench.json",
    "online": "online sine --tasks 10000 --out out",
    "demo": "demo --scale 1000",
    "train": "train glyphs --iterations 1000000 --out out",
    "train, while it compiles": "train sine --iterations 1000000 --out out",
    "pretrain": "pretrain glyphs --epochs 1000 --out out",
    "data import": "data import mine --from photos --data-dir data",
    "predict": "predict glyphs --support letters --images photos --out labels.csv",
    "predict --why": "predict glyphs --support many --images many --why --out labels.csv",
    "learn": "learn photos --model glyphs --show wrong.png",
    "learn, while it adapts": "learn many --show wrong.png",
    "suggest": "suggest glyphs --support letters --images photos",
    "evaluate --open-set": "evaluate glyphs --tasks 100000 --open-set --record record.json",
    "evaluate --refine": "evaluate glyphs --tasks 1000000 --refine tim --record record.json",
    "evaluate --ways": "evaluate glyphs --tasks 1000000 --ways 20 --shots 5 --show figure.png",
    "export --learner": "export glyphs --learner --ways 20 --shots 5 --out learner.onnx",
    "export": "export glyphs --support letters --to onnx --out letters.onnx",
    "train --model": "train glyphs --model tests.models.residual18:resnet18 --adapt last-block --out out",
    "serve": "serve glyphs --port 0",
}
LATER = ("pretrain", "predict --why", "learn, while it adapts", "evaluate --open-set", "export --learner")
"""Commands that are also interrupted in the middle of their work, not only at its beginning."""
# The others would take longer, or differ little.
SAMPLE = ("train, while it compiles", "evaluate images", "reproduce", "data import", "predict")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of photographs, all links to one file that takes a while to decode."""
    root = tmp_path_factory.mktemp("photos")
    pixels = np.random.default_rng(0).integers(0, 256, (1500, 1500, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    (root / "one.jpg").write_bytes(file.getvalue())
    for name in ("train/a", "train/b", "val/c", "test/d"):
        folder = root / "photos" / name
        folder.mkdir(parents=True)
        for number in range(200):
            os.link(root / "one.jpg", folder / f"{number}.jpg")
    return root / "photos"


def processor_seconds(pid: int) -> float | None:
    """Of the process so far; None once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def interrupt(command: Command) -> tuple[float, float]:
    """Press Ctrl-C; return the seconds until the process ended, of a clock and of its processor time."""
    spent = processor_seconds(command.pid)
    assert spent is not None
    last, begun = spent, time.monotonic()
    command.send(signal.SIGINT)
    while (now := processor_seconds(command.pid)) is not None:
        last = now
        assert time.monotonic() < begun + 60, command.err
        time.sleep(0.01)
    return time.monotonic() - begun, last - spent


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    "name", [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow) for name in LONG]
)
def test_ctrl_c_ends_a_command(name: str, tmp_path: Path, photos: Path) -> None:
    check_interrupt(name, tmp_path, photos, 0.6)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("seconds", [2, 5, 9])
@pytest.mark.parametrize("name", LATER)
def test_ctrl_c_ends_a_command_in_the_middle(name: str, seconds: float, tmp_path: Path, photos: Path) -> None:
    check_interrupt(name, tmp_path, photos, seconds)


def check_interrupt(name: str, tmp_path: Path, photos: Path, after: float) -> None:
    """Press Ctrl-C after so many seconds of processor time."""
    (tmp_path / "photos").symlink_to(photos)
    for label in ("a", "b"):
        class_folder(tmp_path / "letters" / label, 1)
    for number, label in enumerate("abcdefghij"):
        class_folder(tmp_path / "many" / label, 15, first=100 * number)
    before = {path.name for path in tmp_path.iterdir()}
    command = Command(LONG[name].split(), tmp_path)
    command.wait_until(lambda: (processor_seconds(command.pid) or 0) > after)
    clock, processor = interrupt(command)
    assert command.wait() == 130, (name, command.err)
    assert clock < SECONDS or (processor < SECONDS and clock < 20), (name, clock, processor)
    assert "Traceback" not in command.err, command.err
    left = {path.name for path in tmp_path.iterdir()} - before
    assert left <= {"out", "data", "demo"}, left  # folders from which the same command resumes
    assert not list(tmp_path.rglob("*.new"))
