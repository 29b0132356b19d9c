"""Time the kernels of a meta-iteration.

    python benchmarks/kernel_times.py --json results/profile-h200.json

The workload is PAMELA with a Conv-4 of 64 filters, 5-way 5-shot, 4 tasks, 5 steps, second order, as in
`pathaware bench`. On a CPU (`--device cpu --rows sine`) it lists PyTorch's operations instead.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from pathaware.experiments.bench.implementations import ENGINE
from pathaware.experiments.bench.timing import wait
from pathaware.experiments.bench.workloads import Inputs, Job, choose
from pathaware.training.provenance import write_record

ITERATIONS = 5


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
    parser.add_argument("--rows", default="images-84-5shot,images-32-5shot")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = {}
    for workload in choose(options.rows.split(","), torch.device(options.device)):
        job = Job(workload, "training", "pamela", "second", options.device, options.precision)
        rows[workload.name] = measure(job)
        print(workload.name, {k: v for k, v in rows[workload.name].items() if k != "kernels"})
        for kernel in rows[workload.name]["kernels"][:20]:
            print(f"{kernel['microseconds']:10.1f} µs {kernel['launches']:7.1f} ×  {kernel['name']}")
    if options.json:
        write_record(options.json, {"rows": rows, "precision": options.precision}, field="json")


if __name__ == "__main__":
    main()
