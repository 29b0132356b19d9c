"""Time the kernels of a meta-iteration, and compute how fast the GPU could be at best.

    python research/pathaware_research/benchmarks/kernel_times.py --precisions tf32,bf16 \\
        --json results/timings/profile-h200.json

The workload is PAMELA with a Conv-4 of 64 filters, 5-way, 4 tasks, 5 steps, second order, as in
`pathaware bench`. On a CPU (`--device cpu --rows sine`) it lists PyTorch's operations instead.

The floor is the time of the multiplications at the speed of a large matrix product, and of the memory traffic
at the speed of a large copy, both measured here. Multiplications are those of the convolutions. Traffic is
that of the activations, if every pass of a block reads each of its inputs once and writes each of its results
once. No implementation that stores activations can be faster than the larger of the two.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from pathaware.training.provenance import write_record
from pathaware_research.bench.implementations import ENGINE
from pathaware_research.bench.timing import wait
from pathaware_research.bench.workloads import Inputs, Job, choose

ITERATIONS = 5
PASSES = {"forward": 1, "gradient": 3, "second": 9}
"""Convolutions of a block in a forward pass, with its gradient, and with a Hessian-vector product as well."""
TRAFFIC = {"forward": (1, 0, 1), "gradient": (3, 2, 2), "second": (8, 8, 5)}
"""Tensors of the size of a block's input, its convolution and its output that these passes read or write."""
FIRST_PASSES = {"forward": 1, "gradient": 2, "second": 4}
FIRST_TRAFFIC = {"forward": (1, 0, 1), "gradient": (2, 0, 2), "second": (4, 0, 5)}
"""The same for the first block. Its input is constant, and its convolution is computed again, not stored."""


def floor(job: Job) -> dict[str, float]:
    """The multiplications and additions of a meta-iteration, and the bytes of its activations."""
    problem: Any = job.workload.problem
    width, bytes_each = problem.width or 64, 2 if job.precision == "bf16" else 4
    support, queries = problem.ways * problem.shots, problem.ways * problem.queries
    steps = "second" if job.order == "second" else "gradient"
    flops = traffic = 0.0
    for images, kind, times in (
        (support, steps, job.workload.steps),
        (support, "forward", 1),  # the divergence guard looks at the end of the path
        (queries, "gradient", 1),
    ):
        side, channels = problem.size, problem.channels
        for block in range(4):
            passes, tensors = (PASSES, TRAFFIC) if block else (FIRST_PASSES, FIRST_TRAFFIC)
            count = job.workload.tasks * images * times
            flops += passes[kind] * count * 2 * 9 * channels * width * side**2
            sizes = channels * side**2, width * side**2, width * (side // 2) ** 2
            traffic += (
                count * bytes_each * sum(n * size for n, size in zip(tensors[kind], sizes, strict=True))
            )
            side, channels = side // 2, width
    return {"flops": flops, "bytes": traffic}


def peaks(device: torch.device, precision: str) -> dict[str, float]:
    """Operations per second of a large matrix product, and bytes per second of a large copy."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(8192, 8192, device=device, dtype=dtype) for _ in range(2))
    source = torch.empty(2**30, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return {
        "flops_per_second": 2 * 8192**3 / _seconds(lambda: a @ b, device),
        "bytes_per_second": 2 * source.numel() / _seconds(lambda: target.copy_(source), device),
    }


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(12):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - start)
    return sorted(times[2:])[5]


def measure(job: Job) -> dict[str, Any]:
    """Time per iteration, time in kernels, launches, and the slowest kernels of a training job."""
    training = job.config().training
    training.apply()
    device = training.torch_device
    iterate = ENGINE.training(job, Inputs(job))
    for i in range(5):
        iterate(i)
    wait(device)
    start = time.perf_counter()
    for i in range(ITERATIONS):
        iterate(i)
    wait(device)
    elapsed = 1e3 * (time.perf_counter() - start) / ITERATIONS
    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
        for i in range(ITERATIONS):
            iterate(i)
        wait(device)
    kernels = [
        {
            "name": event.key[:70],
            "microseconds": (event.self_device_time_total if cuda else event.self_cpu_time_total)
            / ITERATIONS,
            "launches": event.count / ITERATIONS,
        }
        for event in profiler.key_averages()
    ]
    kernels.sort(key=lambda kernel: -kernel["microseconds"])
    return {
        "iteration_ms": elapsed,
        "busy_ms": sum(kernel["microseconds"] for kernel in kernels) / 1e3,
        "launches": sum(kernel["launches"] for kernel in kernels),
        "kernels": kernels[:40],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", default="images-84,images-32")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precisions", default="tf32,bf16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    rows = {}
    for precision in options.precisions.split(","):
        for workload in choose(options.rows.split(","), device):
            job = Job(workload, "training", "pamela", "second", options.device, precision)
            row = measure(job)
            if device.type == "cuda":
                row |= {**floor(job), **peaks(device, precision)}
            rows[f"{workload.name}, {precision}"] = row
            print(workload.name, precision, {k: v for k, v in row.items() if k != "kernels"})
            for kernel in row["kernels"][:20]:
                print(f"{kernel['microseconds']:10.1f} µs {kernel['launches']:7.1f} ×  {kernel['name']}")
    if options.json:
        write_record(options.json, {"rows": rows}, field="json")


if __name__ == "__main__":
    main()
