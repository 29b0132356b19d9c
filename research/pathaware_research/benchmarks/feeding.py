"""The share of a meta-iteration that goes into drawing, gathering and augmenting its images.

    python research/pathaware_research/benchmarks/feeding.py cifar-fs --device cuda \\
        --json feeding.json

Times the whole meta-iteration and the feeding alone on the same tasks; prints medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from pathaware.core.execution import captured
from pathaware.core.seeding import generator
from pathaware.training.config import Config
from pathaware.training.meta_step import meta_step
from pathaware.training.meta_training import build
from pathaware.training.provenance import to_json, write_record


def milliseconds(work: Callable[[int], object], repeats: int) -> float:
    """Median time of one call, with the device synchronised."""
    times = []
    for i in range(repeats + 5):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        work(i)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times[5:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", help="an imported data set")
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--method", default="pamela")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = Config.from_dict(
        {
            "problem": {"name": "classification", "data": options.data, "shots": options.shots},
            "method": {"name": options.method},
            "training": {"device": options.device},
        }
    )
    training = config.training
    training.apply()
    source = config.problem.tasks("train", training.torch_device, training.torch_dtype)
    step = captured(meta_step(config.training, build(config), source), training.graph and source.capturable)

    def draw(i: int) -> object:
        return source.draw(training.tasks, generator(0, "feeding", i))

    whole = milliseconds(lambda i: step(draw(i), 1e-3), options.repeats)
    feeding = milliseconds(lambda i: source.gather(draw(i)), options.repeats)
    result = {
        "what": f"{options.data}, 5-way {options.shots}-shot, {options.method}, {training.tasks} tasks",
        "meta_iteration_ms": whole,
        "feeding_ms": feeding,
        "feeding_share": feeding / whole,
        "graph": source.capturable,
    }
    print(to_json(result))
    if options.json:
        write_record(options.json, result, field="json")


if __name__ == "__main__":
    main()
