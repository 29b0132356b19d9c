"""Growth of cost with the size of tasks."""

from __future__ import annotations

import pytest
import torch

from pathaware_research.bench.scaling import Growth, draw, growth, lines, verdicts
from pathaware_research.bench.workloads import SyntheticImages, Workload

BASE = Workload(
    "tiny", "tiny", SyntheticImages(ways=2, shots=1, queries=1, size=16, width=2), tasks=1, steps=1
)


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


def test_linear_cost_has_exponent_one():
    found = Growth.of({1: 3.0, 4: 12.0, 16: 48.0})
    assert found.exponent == pytest.approx(1)
    assert found.worst == pytest.approx(1)
    assert found.at_most_linear


def test_a_fixed_cost_plus_a_linear_one_is_at_most_linear():
    found = Growth.of({n: 10.0 + n for n in (1, 2, 4, 8)})
    assert found.exponent < 1
    assert found.worst < 1


def test_a_quadratic_cost_is_detected_even_if_it_sets_in_late():
    assert Growth.of({n: float(n * n) for n in (1, 2, 4)}).exponent == pytest.approx(2)
    late = Growth.of({n: 100.0 + n * n for n in (1, 2, 4, 8, 16, 32)})
    assert late.exponent < 1  # the fit over the whole range does not show it
    assert late.worst > 1.5
    assert not late.at_most_linear


def test_one_point_has_no_growth():
    assert Growth.of({1: 2.0}) is None
    assert growth([{"value": 1, "ms": 1.0, "memory_mb": None}]) == {"growth": {}}


def test_a_value_that_does_not_fit_in_memory_is_reported():
    points = [
        {"value": 1, "ms": 1.0, "memory_mb": 10.0},
        {"value": 2, "ms": 4.0, "memory_mb": 20.0},
        {"value": 4, "error": "OutOfMemoryError: CUDA out of memory."},
    ]
    record = {"device": "cuda", "base": "…", "series": {"tasks": {"points": points, **growth(points)}}}
    assert lines(record)[2] == ["tasks", "4", "failed: OutOfMemoryError: CUDA out of memory.", "–"]
    slow, fine = verdicts(record)
    assert "time grows like tasks to the power 2.00, in places faster than linearly" in slow
    assert "memory grows like tasks to the power 1.00, nowhere faster than linearly" in fine
    assert len(draw(record).axes) == 2
