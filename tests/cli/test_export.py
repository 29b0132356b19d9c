"""`pathaware export`, as it is called."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from pathaware.cli import main
from pathaware.core.errors import UsageError
from pathaware.inference.export.formats import quiet_tracing
from tests.inference.models import class_folders, save_run


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_run(tmp_path / "mine")
    class_folders(tmp_path / "pets", {"bee": 2, "Ærfugl": 1})
    return tmp_path


@pytest.fixture
def export(here, capfd):
    def call(*arguments: str, code: int = 0, run: str = "mine") -> tuple[str, str]:
        with pytest.raises(SystemExit) as left:
            main(["export", run, "--support", "pets", *arguments])
        out, err = capfd.readouterr()
        assert (left.value.code or 0) == code, err
        return out, err

    return call


@pytest.mark.parametrize(("to", "name"), [("torch", "mine.pt2"), ("safetensors", "mine.safetensors")])
def test_a_file_is_written_and_its_difference_told(export, here, to, name):
    out, err = export("--to", to)
    assert err == ""
    assert out.startswith(f"{name}: 2 classes, {(here / name).stat().st_size:,} bytes; probabilities of 19 ")
    assert float(out.split()[-1]) < 1e-5


def test_onnx_is_written_with_no_noise(here):
    """In a process of its own: loggers write to where they first found stderr."""
    line = ["export", "mine", "--support", "pets", "--to", "onnx", "--json", "--script"]
    done = subprocess.run(
        [sys.executable, "-m", "pathaware", *line], capture_output=True, text=True, timeout=120
    )
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["classes"] == ["bee", "Ærfugl"]
    assert told["largest_difference"] < 1e-5
    assert (told["file"], told["script"]) == ("mine.onnx", "mine.py")
    assert (here / "mine.py").read_text(encoding="utf-8").startswith('"""Labels pictures: `python mine.py ')


def test_loggers_are_left_as_they_were():
    logger = logging.getLogger("torch.onnx")
    before, inside = logger.level, []

    def fail() -> None:
        with quiet_tracing("onnx"):
            inside.append(logger.level)
            raise RuntimeError("\nno way\nmore")

    with pytest.raises(UsageError, match=r"cannot be traced \(no way\)$"):
        fail()
    assert (inside, logger.level) == ([logging.ERROR], before)


def test_nothing_is_written_over_unasked(export, here):
    (here / "mine.pt2").write_text("precious")
    _, err = export("--to", "torch", code=2)
    assert err == "error: --out: mine.pt2 exists; add --replace to overwrite it\n"
    (here / "x.py").write_text("precious")
    _, err = export("--to", "torch", "--out", "x.pt2", "--script", code=2)
    assert err == "error: --script: x.py exists; add --replace to overwrite it\n"
    assert not (here / "x.pt2").exists()
    export("--to", "torch", "--replace")
    assert (here / "mine.pt2").read_bytes() != b"precious"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--to", "coreml"], "--to: must be one of onnx, torch, safetensors, not coreml"),
        (["--to", "torch", "--out", "a.onnx"], "--out: a.onnx must end in .pt2 for the format torch"),
        (["--to", "torch", "--out", "no/where.pt2"], "--out: no/where.pt2 cannot be written"),
        (["--to", "torch", "--out", "torch.pt2", "--script"], "--script: torch.py would hide the module"),
        (["--to", "torch", "--support", "mine"], "--support: mine has no pictures"),
    ],
)
def test_what_cannot_be_used_is_one_line(export, here, arguments, line):
    before = sorted(here.rglob("*"))
    _, err = export(*arguments, code=2)
    assert err.startswith(f"error: {line}")
    assert len(err.splitlines()) == 1
    assert sorted(here.rglob("*")) == before


def test_a_head_is_no_chain(export, here):
    save_run(here / "heads", "prototypical")
    _, err = export("--to", "safetensors", code=2, run="heads")
    assert "use onnx or torch" in err
    assert not (here / "heads.safetensors").exists()
    export("--to", "torch", run="heads")
    assert (here / "heads.pt2").exists()
