"""The time of an evaluation: adapt to many new tasks and predict their queries after every step.

    python research/pathaware_research/benchmarks/evaluating.py cifar-fs --tasks 10000 --device cuda \\
        --json results/timings/evaluating-h200-batch.json

The network is at its initialisation, which takes as long as a trained one. A short evaluation before it
compiles kernels.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from pathaware.core.few_shot import QUERY_LEVELS
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate
from pathaware.training.meta_training import build
from pathaware.training.provenance import to_json, write_record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", help="an imported data set")
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--method", default="pamela")
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--queries", choices=QUERY_LEVELS)
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    config = Config.from_dict(
        {
            "problem": {"name": "classification", "data": options.data, "shots": options.shots},
            "method": {"name": options.method},
            "training": {"device": options.device, "precision": options.precision},
        }
    )
    config.training.apply()
    learner = build(config)
    evaluate(learner, config.problem, tasks=min(200, options.tasks), queries=options.queries)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    begun, begun_cpu = time.perf_counter(), time.process_time()
    result = evaluate(learner, config.problem, tasks=options.tasks, queries=options.queries)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
    found = {
        **{name: getattr(options, name) for name in ("data", "shots", "method", "tasks", "precision")},
        "queries": result.queries,
        "device": str(config.training.torch_device),
        "seconds": round(seconds, 3),
        "cpu_seconds": round(cpu, 3),
        "tasks_per_second": round(options.tasks / seconds, 1),
    }
    if torch.cuda.is_available():
        found["peak_mb"] = torch.cuda.max_memory_reserved() // 2**20
    print(to_json(found))
    if options.json:
        write_record(options.json, found, field="json")


if __name__ == "__main__":
    main()
