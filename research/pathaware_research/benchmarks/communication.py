"""The cost of summing meta-gradients over many GPUs.

    python research/pathaware_research/benchmarks/communication.py

The model is arithmetic on the assumptions below; only the time of a meta-iteration is measured
(`results/timings/bench-scaling-h200.json`: PAMELA, Conv-4, 84×84, 5-way 5-shot).
"""

from __future__ import annotations

import json
import math
from pathlib import Path

from pathaware.training.tables import Table, markdown

# Assumptions, none of them measured here.
PER_NODE = 8
NVLINK_BANDWIDTH, NVLINK_LATENCY = 450e9, 2e-6
"""Bytes per second in one direction (NVLink 4), and seconds per hop including its part of the kernel."""
NETWORK_BANDWIDTH, NETWORK_LATENCY = 50e9, 5e-6
"""InfiniBand at 400 Gb/s, one adapter per GPU."""

PARAMETERS = {"PAMELA": 162_408, "MAML": 121_093}
"""θ₀ and Φ of a Conv-4 for 84×84 images and five classes, float32."""
GPUS = (2, 8, 64, 512, 1024, 2048, 4096)
MEASURED = Path(__file__).parents[3] / "results/timings/bench-scaling-h200.json"


def ring(gpus: int, size: float) -> float:
    """Seconds of a ring all-reduce: 2 (p − 1) steps, each moves 1/p of the message over one link."""
    if gpus == 1:
        return 0.0
    latency, bandwidth = _slowest(gpus)
    return 2 * (gpus - 1) * (latency + size / gpus / bandwidth)


def tree(gpus: int, size: float) -> float:
    """Seconds of a pipelined tree all-reduce, whose latency grows with log₂ p only."""
    if gpus == 1:
        return 0.0
    inside, nodes = min(gpus, PER_NODE), math.ceil(gpus / PER_NODE)
    hops = math.log2(inside) * NVLINK_LATENCY + math.log2(nodes) * NETWORK_LATENCY
    return 2 * (hops + size / _slowest(gpus)[1])


def _slowest(gpus: int) -> tuple[float, float]:
    """Latency and bandwidth of the slowest link."""
    if gpus <= PER_NODE:
        return NVLINK_LATENCY, NVLINK_BANDWIDTH
    return NETWORK_LATENCY, NETWORK_BANDWIDTH


def meta_iterations() -> dict[int, float]:
    """Measured seconds of a meta-iteration on one H200, by its number of tasks."""
    points = json.loads(MEASURED.read_text(encoding="utf-8"))["series"]["tasks"]["points"]
    return {point["value"]: point["ms"] / 1e3 for point in points}


def weak(tasks: int = 4) -> Table:
    """Weak scaling: the same number of tasks per GPU."""
    size, compute = 4.0 * PARAMETERS["PAMELA"], meta_iterations()[tasks]
    header = ["GPUs", "tasks", "ring, ms", "tree, ms", "efficiency, ring", "efficiency, tree"]
    rows = []
    for gpus in GPUS:
        costs = [ring(gpus, size), tree(gpus, size)]
        shares = [f"{compute / (compute + cost):.1%}" for cost in costs]
        rows.append([f"{gpus:,}", f"{gpus * tasks:,}", *(f"{1e3 * cost:.3f}" for cost in costs), *shares])
    return Table.of("", header, rows)


def strong(tasks: int = 64) -> Table:
    """Strong scaling: one meta-batch on more and more GPUs, until each has one task."""
    size, compute = 4.0 * PARAMETERS["PAMELA"], meta_iterations()
    header = ["GPUs", "tasks per GPU", "computing, ms", "ring, ms", "tree, ms", "speed-up, tree"]
    rows = []
    for gpus in (2**i for i in range(int(math.log2(tasks)) + 1)):
        own, costs = compute[tasks // gpus], [ring(gpus, size), tree(gpus, size)]
        times = [f"{1e3 * own:.2f}", *(f"{1e3 * cost:.3f}" for cost in costs)]
        rows.append([str(gpus), str(tasks // gpus), *times, f"{compute[tasks] / (own + costs[1]):.1f}"])
    return Table.of("", header, rows)


if __name__ == "__main__":
    print(f"Weak scaling\n\n{markdown(weak())}\n\nStrong scaling\n\n{markdown(strong())}")
