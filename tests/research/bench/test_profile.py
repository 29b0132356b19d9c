"""The floor of a meta-iteration, and the tables of a profile."""

from __future__ import annotations

import pytest

from pathaware_research.bench.workloads import Job, SyntheticImages, Workload
from pathaware_research.benchmarks.kernel_times import floor
from pathaware_research.pages.performance_page import floor_table, profile_table

ROWS = {
    "small, tf32": {
        "iteration_ms": 4.0,
        "busy_ms": 3.0,
        "launches": 500.0,
        "flops": 1e12,
        "flops_per_second": 5e14,
        "bytes": 4e9,
        "bytes_per_second": 4e12,
        "kernels": [
            {"name": "convolve_kernel", "microseconds": 1500.0, "launches": 69.0},
            {"name": "hvp_kernel", "microseconds": 500.0, "launches": 15.0},
        ],
    }
}


@pytest.mark.parametrize(("order", "passes"), [("second", 9), ("first", 3)])
def test_the_floor_counts_every_convolution_once(order, passes):
    problem = SyntheticImages(ways=2, shots=1, queries=2, width=8, size=16, channels=1)
    job = Job(Workload("tiny", "tiny", problem, tasks=3, steps=5), "training", "pamela", order)
    per_image = 2 * 9 * 8 * 8 * (8**2 + 4**2 + 2**2)  # blocks 2 to 4
    first = 2 * 9 * 1 * 8 * 16**2
    images = {"support": 3 * 2, "queries": 3 * 4}
    expected = images["support"] * (5 * passes + 1) * per_image + images["queries"] * 3 * per_image
    expected += images["support"] * (5 * (4 if order == "second" else 2) + 1) * first
    expected += images["queries"] * 2 * first
    assert floor(job)["flops"] == expected


def test_half_the_bytes_make_half_the_traffic():
    problem = SyntheticImages(size=32)
    traffic = [
        floor(Job(Workload("x", "x", problem), "training", "pamela", "second", precision=p))["bytes"]
        for p in ("tf32", "bf16")
    ]
    assert traffic[0] == 2 * traffic[1] > 0


def test_a_row_is_split_into_floor_kernels_and_gaps():
    (line,) = floor_table({"rows": ROWS}).rows
    assert line.cells == ("small, tf32", "4.00", "2.00", "1.00", "2.00", "1.00", "1.00")
    cells = {line.cells[0]: list(line.cells[1:]) for line in profile_table(ROWS).rows}
    assert cells["convolutions and their input gradients"] == ["1.50", "69"]
    assert cells["normalise, ReLU and pool of the others"] == ["0.50", "15"]
    assert cells["between kernels"] == ["1.00", ""]
    assert cells["all"] == ["4.00", "500"]
