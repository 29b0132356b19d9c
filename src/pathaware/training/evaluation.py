"""Honest evaluation: every task counted, the worst one named, no graph kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pathaware.core.episodes import TaskSource
from pathaware.core.errors import UsageError
from pathaware.core.learner import FewShotLearner
from pathaware.core.seeding import generator
from pathaware.core.settings import at_least
from pathaware.training.distributed import ALONE, World
from pathaware.training.metric import Metric
from pathaware.training.problems import Problem

BLOCK = 100
_ROOM = (
    4 * 2**30
)  # bytes of GPU memory for each `evaluation_batch` of tasks, which take about a quarter of it


@dataclass(frozen=True)
class Evaluation:
    """The metric of every task after every inner step: `values [tasks, n + 1]`.

    Each column is what a user gets who stops after that step. `reverted` is the fraction of tasks that
    the guard put back to an earlier point of their path.
    """

    metric: Metric
    values: Tensor
    reverted: float
    split: str
    transductive: bool

    def summary(self) -> dict[str, Any]:
        """Mean, 95 % interval, extreme and per-step means, under stable keys."""
        final = self.values[:, -1].double()
        spread = 1.96 * final.std(correction=1) / len(final) ** 0.5 if len(final) > 1 else torch.tensor(0.0)
        name = self.metric.name
        return {
            name: final.mean().item(),
            f"{name}_ci95": spread.item(),
            self.metric.worst_key: self.metric.worst(final).item(),
            f"{name}_per_step": self.values.double().mean(0).tolist(),
            "tasks": len(final),
            "split": self.split,
            "transductive": self.transductive,
            "reverted": self.reverted,
        }


@torch.no_grad()
def evaluate(
    learner: FewShotLearner,
    problem: Problem,
    *,
    split: str = "test",
    tasks: int,
    seed: int = 0,
    batch: int | None = None,
    steps: int | None = None,
    extend: bool = False,
    inductive: bool = False,
    world: World = ALONE,
) -> Evaluation:
    """Adapt to `tasks` new tasks and measure them after every step.

    The tasks depend on the split and the seed only: every method and every run meets the same ones, and
    the first hundred of six hundred are the hundred of a shorter evaluation. `batch` tasks run side by
    side, by default as many as the problem thinks fit for memory. `inductive` normalises queries by the
    support set's statistics (see `pathaware.core.batch_norm`), which matters with batch norm only. Processes of
    one `world` share the tasks out, and all have the result.
    """
    reference = next(learner.parameters())
    if split not in ("train", "val", "test"):
        raise UsageError(f"split: {split!r} is none of train, val, test")
    at_least(1, tasks=tasks)
    source = problem.tasks(split, reference.device, reference.dtype)
    values, reverted = [], []
    batch = batch or _side_by_side(problem, reference.device)
    for plan in _plans(source, split, seed, world.part(tasks), batch):
        episodes = source.gather(plan)
        examples = (episodes.support_x, episodes.support_y, episodes.query_x)
        answers = learner.predictions_per_step(*examples, steps=steps, extend=extend, inductive=inductive)
        measured = [problem.measure(output, episodes.query_y) for output in answers.outputs]
        values.append(torch.stack(measured, dim=1).cpu())
        reverted.append(answers.reverted.cpu())
    share = world.gather(reverted).double().mean().item()
    return Evaluation(problem.metric, world.gather(values), share, split, not inductive)


def _side_by_side(problem: Problem, device: torch.device) -> int:
    """As many tasks as fit in a part of a GPU's free memory: small batches leave it waiting for launches."""
    if device.type != "cuda":
        return problem.evaluation_batch
    free, _ = torch.cuda.mem_get_info(device)
    return min(BLOCK, problem.evaluation_batch * max(1, free // _ROOM))


def _plans(source: TaskSource, split: str, seed: int, own: range, batch: int) -> Iterator[Any]:
    """Tasks are drawn in blocks of one size, whatever the batch they run in and whoever runs them."""
    for first in range(own.start // BLOCK * BLOCK, own.stop, BLOCK):
        plan = source.draw(BLOCK, generator(seed, "evaluate", split, first))
        end = min(BLOCK, own.stop - first)
        for start in range(max(0, own.start - first), end, batch):
            yield plan[start : min(start + batch, end)]
