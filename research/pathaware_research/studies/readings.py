"""Compare readings of the points that the paper leaves open about PAMELA's rule, on sine waves.

python research/pathaware_research/studies/readings.py \\
    [--shots 10] [--iterations 6000] [--seeds 3] [--json results/other/readings-sine.json]

Every reading is trained with the same tasks and evaluated on the same 1,000 new waves. Those that are
settings of `Pamela` use those settings; the others are subclasses in this file.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pathaware.core.execution import captured
from pathaware.core.learner import MetaLearner
from pathaware.core.parameters import GroupBroadcast
from pathaware.core.seeding import generator
from pathaware.methods.pamela import Pamela
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate
from pathaware.training.fitting import learning_rate
from pathaware.training.meta_step import meta_step
from pathaware.training.meta_training import build
from pathaware.training.provenance import write_record


class ShortSkip(Pamela):
    """Fig. 3's caption: a skip of w = 2 spans two updates, so it ends at θ_w and not at θ_{w+1}."""

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        moved = torch.addcmul(points[-1], self.broadcast_q(self.q[j]), gradient, value=-1)
        assert self.skip is not None
        if (j + 1) % self.skip or (j + 1) // self.skip > len(self.p):
            return moved
        p = self.broadcast_p(self.p[(j + 1) // self.skip - 1])
        return torch.lerp(moved, points[j + 1 - self.skip], p)


class Bounded(Pamela):
    """Coupling coefficients kept between 0 and 1; they start at 1/100, since a sigmoid never is 0."""

    def __init__(self, network: nn.Module, **options: Any) -> None:
        super().__init__(network, **options)
        nn.init.constant_(self.p, -4.6)

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        moved = torch.addcmul(points[-1], self.broadcast_q(self.q[j]), gradient, value=-1)
        if self.skip is None or j not in self.skips:
            return moved
        p = self.broadcast_p(self.p[j // self.skip - 1]).sigmoid()
        return torch.lerp(moved, points[j - self.skip], p)


class Normalised(Pamela):
    """ "Kernel-wise normalized vectors": each unit's Q has a root mean square of the rate, and learns a
    direction only."""

    def __init__(self, network: nn.Module, rate: float = 0.01, **options: Any) -> None:
        super().__init__(network, rate=rate, q_granularity="parameter", **options)
        self.rate, self.kernels = rate, GroupBroadcast(self.layout, "tensor-channel")
        sizes = torch.zeros(self.kernels.groups).index_add_(
            0, self.kernels.index, torch.ones(len(self.layout))
        )
        self.register_buffer("sizes", sizes, persistent=False)

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        q = self.q[j]
        squares = torch.zeros_like(self.sizes).index_add(0, self.kernels.index, q.square())
        unit = q * (self.rate / (squares / self.sizes + 1e-20).sqrt())[self.kernels.index]
        moved = torch.addcmul(points[-1], unit, gradient, value=-1)
        if self.skip is None or j not in self.skips:
            return moved
        p = self.broadcast_p(self.p[j // self.skip - 1])
        return torch.lerp(moved, points[j - self.skip], p)


READINGS: dict[str, Callable[[nn.Module], Pamela]] = {
    "as chosen": Pamela,
    "P: a skip ends one step earlier": ShortSkip,
    "P: bounded by 0 and 1": Bounded,
    "P: one for each tensor": partial(Pamela, p_granularity="tensor"),
    "P: one for each parameter": partial(Pamela, p_granularity="parameter"),
    "Q: normalised in each unit": Normalised,
    "Q: one for each unit and tensor": partial(Pamela, q_granularity="tensor-channel"),
    "Q: one for each layer": partial(Pamela, q_granularity="layer"),
    "no guard": Pamela,
}


def trained(reading: str, shots: int, iterations: int, seed: int) -> dict[str, Any]:
    """Train one run and evaluate it on new waves."""
    config = Config.from_dict(
        {
            "problem": {"name": "sine", "shots": shots},
            "method": {"name": "pamela"},
            "training": {"iterations": iterations, "seed": seed, "guard": reading != "no guard"},
        }
    )
    config.training.apply()
    model = build(config).model
    learner = MetaLearner(model, READINGS[reading](model), config.problem.loss, guard=config.training.guard)
    source = config.problem.tasks("train", "cpu", torch.float32)
    step = captured(meta_step(config.training, learner, source), source.capturable)
    for i in range(iterations):
        plan = source.draw(config.training.tasks, generator(seed, "train", i))
        step(plan, learning_rate(config.training, i))
    return {"reading": reading, "seed": seed, **evaluate(learner, config.problem, tasks=1000).summary()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shots", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with ProcessPoolExecutor(options.workers) as pool:
        waiting = [
            pool.submit(trained, reading, options.shots, options.iterations, seed)
            for seed in range(options.seeds)
            for reading in READINGS
        ]
        found = []
        for each in waiting:
            found.append(each.result())
            print(
                f"{found[-1]['reading']:36} seed {found[-1]['seed']}  mse {found[-1]['mse']:.4f}", flush=True
            )
    if options.json:
        record = {"readings": found, "shots": options.shots, "iterations": options.iterations}
        write_record(options.json, record, field="json")


if __name__ == "__main__":
    main()
