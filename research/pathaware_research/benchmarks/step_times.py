"""Time meta-iterations of training alone, for any method and network, without other libraries and checks.

    python research/pathaware_research/benchmarks/step_times.py --rows images-32 \\
        --methods pamela,fomaml,r2d2 --precision tf32,bf16
    python research/pathaware_research/benchmarks/step_times.py --rows images-84-5shot \\
        --network resnet12 --last-block --execution loop
    torchrun --nproc-per-node 2 research/pathaware_research/benchmarks/step_times.py --rows glyphs \\
        --device cpu

For comparing two versions of the engine in turns: `pathaware bench` checks and times more, and takes minutes.
Each line is a row, a method, a precision, milliseconds per iteration and the memory of an iteration.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from pathaware import Layout, MetaLearner, Pamela
from pathaware.core.execution import captured
from pathaware.core.seeding import generator
from pathaware.methods import get_method
from pathaware.training.config import Config, Training
from pathaware.training.distributed import World, leave, process_group
from pathaware.training.meta_step import meta_step
from pathaware.training.meta_training import build
from pathaware.training.provenance import write_record
from pathaware_research.bench.timing import Work, wait, warmed_up
from pathaware_research.bench.workloads import Workload, choose

RATE = 1e-3


def configuration(workload: Workload, method: str, precision: str, options: argparse.Namespace) -> Config:
    problem: Any = replace(workload.problem, model_name=options.network)
    problem = replace(problem, width=options.width or problem.width)
    known = get_method(method).settings()
    wanted = {"steps": workload.steps, "rate": workload.rate, "skip": 2}
    settings = {name: value for name, value in wanted.items() if name in known}
    training = {"tasks": workload.tasks, "device": options.device, "precision": precision}
    return Config(problem, method, settings, Training(**training, execution=options.execution))


def iteration(config: Config, options: argparse.Namespace, world: World) -> Work:
    """One meta-iteration, from drawing tasks to the optimiser's step."""
    training = config.training
    source = config.problem.tasks("train", training.torch_device, training.torch_dtype)
    learner = build(config)
    if options.last_block:
        layout = Layout.of(learner.model, lambda name: name.startswith(("3", "6")))
        rule = Pamela(layout, 5, rate=0.01, skip=2)
        learner = MetaLearner(learner.model, rule, config.problem.loss, execution=training.execution)
        learner = learner.to(training.torch_device)
    eager = meta_step(config.training, learner, source, world=world)
    step = captured(eager, training.execution != "loop" and source.capturable)
    return lambda i: step(source.draw(training.tasks, generator(0, "bench", i)), RATE)


def measure(config: Config, options: argparse.Namespace, world: World) -> dict[str, Any]:
    """The median of five bursts that together take `options.seconds`, and the memory of an iteration."""
    config.training.apply()
    device = config.training.torch_device
    iterate, memory = warmed_up(lambda: iteration(config, options, world), device)
    times: list[float] = []
    count = 1
    while len(times) < 6:
        wait(device)
        start = time.perf_counter()
        for i in range(count):
            iterate(i)
        wait(device)
        times.append((time.perf_counter() - start) / count)
        count = world.from_writer(lambda: max(1, int(options.seconds / 5 / times[-1])))
    return {"ms": 1e3 * sorted(times[1:])[2], "memory_mb": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", default="images-32,images-84")
    parser.add_argument("--methods", default="pamela,maml,fomaml")
    parser.add_argument("--network", default="conv4")
    parser.add_argument("--width", type=int, default=0, help="filters per layer; 0 for those of the row")
    parser.add_argument("--last-block", action="store_true", help="PAMELA on a ResNet's last block and head")
    parser.add_argument("--execution", default="auto")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="tf32", help="one or several, separated by commas")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with process_group(Training(device=options.device)) as world:
        rows = measure_all(options, world)
    if options.json and world.is_writer:
        kept = ("network", "width", "last_block", "execution", "precision", "seconds")
        settings = {name: getattr(options, name) for name in kept}
        write_record(
            options.json,
            {**settings, "processes": world.size, "threads": torch.get_num_threads(), "rows": rows},
            field="json",
        )
    if world.size > 1:
        leave(0)


def measure_all(options: argparse.Namespace, world: World) -> list[dict[str, Any]]:
    methods = ["pamela"] if options.last_block else options.methods.split(",")
    workloads = choose(options.rows.split(","), torch.device(options.device))
    rows = []
    for precision, workload, method in product(options.precision.split(","), workloads, methods):
        found = measure(configuration(workload, method, precision, options), options, world)
        rows.append({"row": workload.name, "method": method, "precision": precision, **found})
        memory = "" if found["memory_mb"] is None else f"{found['memory_mb']:8.0f} MB"
        if world.is_writer:
            print(f"{workload.name:16} {method:14} {precision:4} {found['ms']:8.2f} ms {memory}", flush=True)
    return rows


if __name__ == "__main__":
    main()
