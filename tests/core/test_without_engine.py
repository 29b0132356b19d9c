"""Without the package `pathaware.engine` everything works: with the same results, but more slowly."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pathaware import Layout, UsageError
from pathaware.core import execution
from pathaware.training.checksummed import read_checksummed
from tests.conftest import small_problem

HIDE = "import sys; sys.modules['pathaware.engine'] = None"  # imports of it fail, as if it were not installed

IMPORT_ALL = """
import importlib, pkgutil, pathaware
for found in pkgutil.walk_packages(pathaware.__path__, "pathaware."):
    if not found.name.startswith("pathaware.engine") and not found.name.endswith("__main__"):
        importlib.import_module(found.name)
from pathaware.core import execution
assert execution.engine() is None
"""

TRAIN = """
from pathaware.cli import main
short = ["--iterations", "3", "--device", "cpu", "--test-tasks", "0"]
short += ["--set", "training.validate=0", "--set", "training.dtype=float64"]
small = ["--set", "problem.width=4", "--set", "problem.queries=2"]
for problem, options in {"sine": [], "glyphs": small}.items():
    sys.argv = ["pathaware", "train", problem, *short, *options, "--out", problem]
    try:
        main()
    except SystemExit as end:
        assert not end.code, end.code
"""


def run(code: str, folder: Path) -> None:
    folder.mkdir()
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)


def checkpoint(folder: Path) -> dict[str, Tensor]:
    return read_checksummed(folder / "checkpoint.safetensors")[0]


def test_training_without_the_engine_gives_the_numbers_of_training_with_it(tmp_path):
    """PAMELA on sine waves and on images, in float64: Adam would enlarge errors of rounding."""
    codes = {"without": HIDE + IMPORT_ALL + TRAIN, "with": "import sys" + TRAIN}
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: run(codes[name], tmp_path / name), codes))
    for problem in ("sine", "glyphs"):
        tensors, expected = (checkpoint(tmp_path / name / problem) for name in codes)
        for name in expected:
            torch.testing.assert_close(tensors[name], expected[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["mlp", "conv4"])
def test_without_the_engine_auto_is_vmap_and_batched_is_an_error(kind, monkeypatch):
    monkeypatch.setattr(execution, "engine", lambda: None)
    model, loss, _ = small_problem(kind)
    choose = partial(execution.select_execution, model=model, layout=Layout.of(model), loss=loss)
    assert choose("auto").name == "vmap"
    with pytest.raises(UsageError, match=r"'batched' cannot run this model \(pathaware.engine is not inst"):
        choose("batched")
