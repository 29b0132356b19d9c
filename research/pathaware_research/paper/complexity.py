"""Table 5: number of parameters, and milliseconds per task in training and at test time."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from pathaware.core.learner import require_path
from pathaware.core.seeding import generator
from pathaware.training.config import Config, Training
from pathaware.training.loop import Fit
from pathaware.training.meta_training import MetaTraining
from pathaware.training.problems import Problem
from pathaware.training.tables import Row, Table
from pathaware_research.bench.timing import Timing, Work, in_turns, warmed_up
from pathaware_research.bench.workloads import SyntheticImages
from pathaware_research.paper.tables import LABELS

# Table 5: parameters, inner steps, and milliseconds per task in training and at test time.
COMPLEXITY: dict[str, tuple[int, int, float, float]] = {
    "maml": (121_090, 5, 205.50, 41.33),
    "meta-sgd": (242_180, 1, 53.75, 16.67),
    "pamela": (162_390, 5, 215.84, 43.33),
}

TITLE = "Table 5: complexity"


def measure(repeats: int = 20, device: str = "auto", size: int = 84) -> dict[str, Any]:
    """Time all three methods in turns, on images of noise: the pixels do not change the time."""
    problem: Problem = SyntheticImages(shots=5, size=size)
    training = Training(device=device)
    trainings = {m: MetaTraining(Config(problem, m, {}, training)) for m in COMPLEXITY}
    target, work = training.torch_device, {}
    for method, objective in trainings.items():
        work[method, "train"], _ = warmed_up(partial(_training, Fit(objective)), target)
        work[method, "test"], _ = warmed_up(partial(_test, objective), target)
    times, errors = in_turns(work, repeats, target)
    assert not errors, errors
    found = {
        method: {
            "parameters": sum(p.numel() for p in objective.learner.parameters()),
            "steps": require_path(objective.learner).rule.steps,
            "train_ms": _per_task(times[method, "train"], training.tasks),
            "test_ms": _per_task(times[method, "test"], 1),
        }
        for method, objective in trainings.items()
    }
    return {
        "complexity": found,
        "what": f"Conv-4 of 64 filters, {size}×{size}, 5-way 5-shot, 15 queries per class",
        "repeats": repeats,
    }


def _training(fit: Fit) -> Work:
    return lambda i: fit.advance()


def _test(objective: MetaTraining) -> Work:
    """Adapt to the support set of one task and predict its queries."""
    learner, episodes = objective.learner, objective.source.sample(1, generator(0, "complexity"))

    def work(i: int) -> Tensor:
        with torch.no_grad():
            outputs: Tensor = learner.adapt(episodes.support_x[0], episodes.support_y[0])(episodes.query_x[0])
            return outputs

    return work


def _per_task(timing: Timing, tasks: int) -> dict[str, float]:
    return {"median": timing.median / tasks, "low": timing.low / tasks, "high": timing.high / tasks}


def table5(record: dict[str, Any]) -> Table:
    """The table from a record of `measure`, with the paper's numbers."""
    found = record["complexity"]
    rows = []
    for method, printed in COMPLEXITY.items():
        ours, base = found[method], found["maml"]
        cells = [
            LABELS[method].partition(",")[0],
            f"{ours['parameters']:,}",
            f"{printed[0]:,}",
            str(ours["steps"]),
        ]
        for kind, place in (("train_ms", 2), ("test_ms", 3)):
            time = ours[kind]["median"]
            cells += [f"{time:.2f}", f"{printed[place]:.2f}"]
            cells += [f"{time / base[kind]['median']:.2f} ×"]
            cells += [f"{printed[place] / COMPLEXITY['maml'][place]:.2f} ×"]
        rows.append(Row(tuple(cells)))
    header = ["method", "parameters", "the paper", "steps"]
    for kind in ("train", "test"):
        header += [f"{kind}, ms per task", "the paper", f"{kind} / MAML", "the paper"]
    notes = [
        f"{record['what']}, on {record['environment']['device']}; medians of {record['repeats']}, in turns.",
        "Training: one meta-iteration of four tasks divided by four, including sampling, augmentation and "
        "Adam. Test: adapting to a single task and predicting its queries.",
    ]
    return Table(TITLE, tuple(header), rows, notes)
