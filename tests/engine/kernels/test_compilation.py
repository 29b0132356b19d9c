"""Every kernel compiles for an H200, on a machine without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
SCRIPT = Path(__file__).with_name("compile_kernels.py")


@pytest.mark.parametrize(
    "options",
    [
        ("float32", "first"),
        pytest.param(("float32",), marks=pytest.mark.slow),
        pytest.param(("bfloat16",), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_every_kernel_compiles(options: tuple[str, ...], tmp_path: Path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # nothing that was compiled before may count
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options], capture_output=True, text=True, timeout=550, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines()]
    compiled = {name for name, _, _ in lines}
    launched = {
        f"{name}_kernel"
        for name in (
            "stem_products",
            "stem_sums",
            "stem_hvp",
            "convolve",
            "weight_gradient",
            "hvp",
            "sum_first_all",
            "classifier",
            "update_derivative",
            "sum_groups",
            "leaky_second",
            "join_block",
        )
    }
    launched |= {"classifier_kernel_of_given", "convolve_kernel_with_bias", "sum_groups_kernel_of_layers"}
    launched |= {"lstm_kernel", "lstm_derivative_kernel", "lstm_derivative_kernel_of_memory"}
    with_constants = ("normalise", "backward", "tangent", "hvp")
    launched |= {f"{part}{name}_kernel_of_constants" for part in ("", "stem_") for name in with_constants}
    assert launched <= compiled
    assert max(int(shared) for _, shared, _ in lines) < 227 * 1024  # bytes that a program may use
    assert max(int(warps) for _, _, warps in lines) <= 32  # more compile, but cannot be launched
