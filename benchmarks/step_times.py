"""Time a meta-iteration of training alone, without other libraries and checks.

    python benchmarks/step_times.py --rows images-32 --precision bf16 --seconds 2

For comparing two versions of the engine in turns: `pathaware bench` checks and times more, and takes minutes.
Prints one line per row: method, order, milliseconds per iteration, peak memory.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from pathaware.experiments.bench.implementations import ENGINE
from pathaware.experiments.bench.timing import wait, warmed_up
from pathaware.experiments.bench.workloads import Inputs, Job, choose
from pathaware.training.provenance import write_record

KINDS = (("pamela", "second"), ("maml", "second"), ("pamela", "first"))


def measure(job: Job, seconds: float) -> dict[str, Any]:
    """The median of five bursts that together take `seconds`, and the memory of an iteration."""
    training = job.config().training
    training.apply()
    device = training.torch_device
    iterate, memory = warmed_up(lambda: ENGINE.training(job, Inputs(job)), device)
    times: list[float] = []
    count = 1
    while len(times) < 6:
        wait(device)
        start = time.perf_counter()
        for i in range(count):
            iterate(i)
        wait(device)
        times.append((time.perf_counter() - start) / count)
        count = max(1, int(seconds / 5 / times[-1]))
    return {"ms": 1e3 * sorted(times[1:])[2], "memory_mb": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", default="images-32,images-84")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for workload in choose(options.rows.split(","), torch.device(options.device)):
        for method, order in KINDS:
            job = Job(workload, "training", method, order, options.device, options.precision)  # type: ignore[arg-type]
            found = measure(job, options.seconds)
            rows.append({"row": workload.name, "method": method, "order": order, **found})
            memory = "" if found["memory_mb"] is None else f"{found['memory_mb']:8.0f} MB"
            print(f"{workload.name:16} {method:6} {order:6} {found['ms']:8.2f} ms {memory}", flush=True)
    if options.json:
        write_record(options.json, {"rows": rows, "precision": options.precision}, field="json")


if __name__ == "__main__":
    main()
