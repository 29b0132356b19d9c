"""Time every method on one CPU thread: a meta-iteration, and adapting to one new task.

    python research/pathaware_research/benchmarks/method_times.py --json results/timings/method-times-cpu.json

The networks and episodes are those of the glyphs contest (`pathaware reproduce methods --data glyphs`) and of
Table 2's CIFAR-FS 5-shot column, with random images: values do not matter for time. CPU time is measured, not
elapsed time, so other load hardly matters. The median of several repeats counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from pathaware.core.episodes import Episodes
from pathaware.core.few_shot import FewShotLearner
from pathaware.methods import METHODS, get_method
from pathaware.models import conv4
from pathaware.training.config import Training
from pathaware.training.provenance import write_record
from pathaware_research.paper.method_table import method_experiment

REPEATS = 5
ENOUGH = 6.0
"""Seconds of measured work after which no further repeat begins."""
HALFWAY = 0.5
"""Fraction of training completed, for methods that change: MAML++ is slower at first."""


@dataclass(frozen=True)
class Workload:
    """The shapes of a problem: images, a network of `width` filters, and 5-way episodes of `tasks` tasks."""

    data: str
    size: int
    channels: int
    width: int
    shots: int
    queries: int
    tasks: int

    def episodes(self) -> Episodes:
        return Episodes(*self._examples(self.shots), *self._examples(self.queries))

    def _examples(self, count: int) -> tuple[Tensor, Tensor]:
        labels = torch.arange(5).repeat(count)[torch.randperm(5 * count)]
        images = torch.rand(self.tasks, 5 * count, self.channels, self.size, self.size)
        return images, labels.expand(self.tasks, -1).clone()

    def learner(self, name: str) -> FewShotLearner:
        network = conv4(ways=5, size=self.size, channels=self.channels, width=self.width)
        return get_method(name).build(network, self.settings(name), cross_entropy)

    def settings(self, name: str) -> dict[str, Any]:
        tables = method_experiment(self.data, name).tables["method"]
        return {key: value for key, value in tables.items() if key != "name"}


WORKLOADS = {
    "glyphs": Workload("glyphs", 28, 1, 32, shots=1, queries=5, tasks=4),
    "cifar-fs": Workload("cifar-fs", 32, 3, 64, shots=5, queries=15, tasks=1),
}


def cpu_ms(work: Callable[[], object]) -> float:
    """Median CPU milliseconds of a piece of work, without its first execution, which prepares."""
    work()
    found: list[float] = []
    while len(found) < REPEATS and sum(found) < 1e3 * ENOUGH:
        started = time.process_time()
        work()
        found.append(1e3 * (time.process_time() - started))
    return statistics.median(found)


def measure(name: str, workload: Workload) -> dict[str, float]:
    """`training_ms` per task and meta-iteration, `adaptation_ms` per task."""
    torch.manual_seed(0)
    episodes, learner = workload.episodes(), workload.learner(name)
    learner.progress(HALFWAY)
    optimizer = torch.optim.Adam(learner.parameters(), fused=True)

    def iteration() -> None:
        optimizer.zero_grad()
        learner.backward(episodes)
        optimizer.step()

    adaptation = cpu_ms(lambda: learner.adapt(episodes.support_x[0], episodes.support_y[0]))
    return {"training_ms": cpu_ms(iteration) / workload.tasks, "adaptation_ms": adaptation}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, required=True, help="file of the record")
    parser.add_argument("--only", action="append", choices=list(METHODS), help="a method; can be repeated")
    options = parser.parse_args()
    Training(device="cpu", threads=1).apply()
    known: dict[str, Any] = {}
    if options.json.exists():  # measured before: only what is asked for is measured again
        known = json.loads(options.json.read_text(encoding="utf-8"))["workloads"]
    for key, workload in WORKLOADS.items():
        found = dict(known.get(key, {}))
        for name in options.only or METHODS:
            if options.only or name not in found:
                found[name] = measure(name, workload)
                print(f"{key} {name}: {found[name]}", flush=True)
                known[key] = found
                what = "CPU time on one thread: per task and meta-iteration, and per adapted task"
                write_record(options.json, {"workloads": known, "what": what})


if __name__ == "__main__":
    main()
