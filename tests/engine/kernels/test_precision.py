"""The error of a meta-gradient in each precision: as recorded, and, on a GPU, as measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pathaware_research.records import Records, measurement

ROOT = Path(__file__).parents[3]


def check(medians: dict[str, dict[str, float]]) -> None:
    """fp32 is as exact as PyTorch's layers; tf32 and bf16 have errors that match their few bits."""
    assert medians["fp32"]["kernels"] <= 2 * medians["fp32"]["plain"]
    assert medians["tf32"]["kernels"] <= 2 * medians["tf32"]["plain"] < 0.5
    assert medians["bf16"]["kernels"] < 0.5


def test_the_recorded_errors_are_within_bounds():
    check(measurement(ROOT / "results", "other/meta-gradient-h200")["median"])


def test_the_recorded_runs_reach_the_same_accuracy_in_every_precision():
    records = Records("tables-cifar-fs", ROOT / "results")
    runs = [records[f"cifar-fs-{precision}"]["result"] for precision in ("fp32", "tf32", "bf16")]
    low = max(run["accuracy"] - run["accuracy_ci95"] for run in runs)
    assert low < min(run["accuracy"] + run["accuracy_ci95"] for run in runs)  # all intervals overlap


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_errors_on_this_gpu_are_within_bounds(tmp_path: Path):
    out = tmp_path / "precision.json"
    script = ROOT / "research/pathaware_research/studies/precision.py"
    subprocess.run([sys.executable, str(script), "--draws", "9", "--json", str(out)], check=True, timeout=300)
    check(json.loads(out.read_text(encoding="utf-8"))["median"])
