"""`pathaware bench` on the command line."""

from __future__ import annotations

import json

import pytest
import torch

from pathaware.cli import main
from pathaware.training.config import Training
from pathaware_research.bench import scaling
from pathaware_research.pages.performance_page import bench_sections


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


def pathaware(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["bench", *arguments])
    return end.value.code


def test_tables_are_printed_and_the_json_file_renders_as_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    target = tmp_path / "timings/bench-here.json"
    target.parent.mkdir()
    only = "--only", "pathaware", "--only", "loop"
    options = "--rows", "sine", "--repeats", "1", *only, "--precision", "fp32"
    assert pathaware(*options, "--json", str(target)) == 0
    shown = capsys.readouterr()
    assert "sequential loop" in shown.out
    assert "sine: training, second order" in shown.err
    record = json.loads(target.read_text())
    assert set(record["contestants"]) == {"pathaware", "loop"}
    assert record["precision"] == "fp32"
    assert {"commit", "environment", "repeats"} <= set(record)
    assert all(entry["same"] for row in record["rows"] for entry in row["entries"].values())
    (page,) = bench_sections(tmp_path, tmp_path)
    assert "| sine | second | pamela |" in page
    assert page.count("| sine |") == 6


def test_scaling_writes_a_json_file_and_a_figure(tmp_path, monkeypatch, capsys):
    small = scaling.Study(scaling.ON_CPU.base, {"tasks": (1, 2), "steps": (1, 2)})
    monkeypatch.setattr(scaling, "ON_CPU", small)
    target, figure = tmp_path / "timings/bench-growth.json", tmp_path / "bench-growth.png"
    target.parent.mkdir()
    options = ("--scaling", "--rows", "steps", "--repeats", "1", "--device", "cpu", "--threads", "1")
    assert pathaware(*options, "--json", str(target), "--plot", str(figure)) == 0
    assert "time grows like steps to the power" in capsys.readouterr().out
    assert set(json.loads(target.read_text())["series"]) == {"steps"}
    assert figure.read_bytes()[:4] == b"\x89PNG"
    (page,) = bench_sections(tmp_path, tmp_path)
    assert "(images/bench-growth.png)" in page
    assert "| steps | 2 |" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--rows", "cosine"), "--rows: 'cosine' must be one of sine, glyphs"),
        (("--rows", "sine", "--full"), "--full: all rows are timed"),
        (("--only", "lower"), "--only: 'lower' must be one of pathaware, compiled, loop, higher"),
        (("--repeats", "0"), "repeats: 0 is not allowed; must be at least 1"),
        (("--threads", "-1"), "threads: -1 is not allowed; must be at least 0"),
        (("--device", "tpu"), "device: 'tpu' must be one of auto, cpu, cuda"),
        (("--precision", "fp8"), "precision: 'fp8' is not allowed; must be one of fp32"),
        (("--scaling", "--precision", "tf32,bf16"), "--precision: with --scaling one precision is measured"),
        (("--plot", "x.png"), "--plot: applies to --scaling only"),
        (("--scaling", "--only", "higher"), "--only: cannot be combined with --scaling"),
        (("--scaling", "--full"), "--full: cannot be combined with --scaling"),
        (("--scaling", "--rows", "sine"), "--rows: 'sine' must be one of tasks, steps, size, width"),
        (("--json", "no/such/folder.json"), "--json: no/such/folder.json cannot be written"),
        (("--scaling", "--plot", "."), "--plot: . cannot be written"),
    ],
)
def test_bad_options_are_one_line_and_exit_code_2(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(Training, "apply", lambda self: pytest.fail("it began to measure"))
    assert pathaware(*arguments) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert message in shown
    assert shown.count("\n") == 1
