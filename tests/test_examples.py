"""The scripts in examples/ run, are short, and say what their docstrings promise."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
EXPECTED = {
    "maml_sine": r"error on 100 new waves after each step: [\d. ]+",
    "pamela_images": r"after step 5: [\d.]+ %",
    "custom_rule": r"Momentum: error [\d.]+ on 200 new waves; learned, on average \{'alpha': .*'mu'",
    "with_accelerate": r"error on 200 new waves: [\d.]+ before adaptation, [\d.]+ after",
    "with_lightning": r"error on 200 new waves: [\d.]+ after adaptation",
    "own_tasks": r"iteration 3: error on 200 new tasks [\d.]+",
    "own_images": r"gamma/3\.png: gamma \(\d+ %\)",
}


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES} == set(EXPECTED)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning asks PyTorch in an old way
@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_with_less_training(path, tmp_path, capsys):
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") < 60
    script = tmp_path / path.name
    script.write_text(re.sub(r"^ITERATIONS = \d+", "ITERATIONS = 3", text, flags=re.MULTILINE))
    runpy.run_path(str(script), run_name="__main__")
    assert re.search(EXPECTED[path.stem], capsys.readouterr().out)
