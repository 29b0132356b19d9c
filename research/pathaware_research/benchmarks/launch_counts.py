"""Count the kernels that a meta-iteration launches on a GPU, on a machine without one.

    python research/pathaware_research/benchmarks/launch_counts.py --json results/timings/launches.json

Triton's kernels are counted instead of run, and every operation of PyTorch that computes something counts as
one launch. Some take more on a GPU, so these are lower bounds; `kernel_times.py` has the true numbers.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

from pathaware.core import head, path
from pathaware.core.seeding import generator
from pathaware.engine import kernels
from pathaware.methods import get_method
from pathaware.training.config import Config, Training
from pathaware.training.meta_step import meta_step
from pathaware.training.meta_training import build
from pathaware.training.provenance import write_record
from pathaware_research.bench.workloads import choose

FREE = ("empty", "new_empty", "detach", "alias", "_unsafe_view", "_record_function", "is_pinned")
"""Operations that launch nothing."""


class Counting(TorchDispatchMode):
    """Counts operations that launch kernels, views and allocations excepted."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        aliases = [result.alias_info for result in func._schema.returns]
        view = bool(aliases) and aliases[0] is not None and not aliases[0].is_write
        if not view and not name.startswith(FREE):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def as_on_a_gpu(counts: Counter[str]) -> Iterator[None]:
    """A context in which networks run as on a GPU. Values are arbitrary: no kernel runs."""

    def count(self: Any, *args: Any, **kwargs: Any) -> None:
        counts[self.__name__] += 1

    with (
        mock.patch.object(JITFunction, "run", count),
        mock.patch.object(kernels, "usable", return_value=True),
        mock.patch.object(path, "on_host", return_value=False),
        mock.patch.object(head, "on_host", return_value=False),
    ):
        yield


def launches(row: str, method: str, **settings: Any) -> Counter[str]:
    """Launches of one meta-iteration by the name of the kernel or operation."""
    (workload,) = choose([row], torch.device("cpu"))
    config = Config(
        replace(workload.problem, **settings),
        method,
        {
            name: value
            for name, value in {"steps": workload.steps}.items()
            if name in get_method(method).settings()
        },
        Training(tasks=workload.tasks, device="cpu", threads=1),
    )
    config.training.apply()
    source = config.problem.tasks("train", torch.device("cpu"), torch.float32)
    counts: Counter[str] = Counter()
    with as_on_a_gpu(counts):
        learner: Any = build(config)
        if learner.execution is not None:
            learner.execution.kernel_program  # noqa: B018 - made before the CPU's own program goes
            learner.execution.program = None
        step = meta_step(config.training, learner, source)
        plan = source.draw(workload.tasks, generator(0, "bench", 0))
        step.run(plan)  # the optimiser makes its state
        counts.clear()
        with Counting(counts):
            step.run(plan)
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", default="images-32-5shot")
    parser.add_argument("--methods", default="pamela,maml,fomaml,r2d2,prototypical")
    parser.add_argument("--most", type=int, default=0, help="also list this many of the most frequent")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for row in options.rows.split(","):
        for method in options.methods.split(","):
            counts = launches(row, method)
            print(f"{row} {method}: {counts.total()} launches")
            for name, count in counts.most_common(options.most):
                print(f"{count:8} {name}")
            rows.append({"row": row, "method": method, "launches": counts.total(), "by_name": dict(counts)})
    if options.json:
        write_record(options.json, {"rows": rows}, field="json")


if __name__ == "__main__":
    main()
