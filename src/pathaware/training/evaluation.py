"""Evaluation on new tasks: the metric of every task after every inner step."""

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
"""Tasks are drawn in blocks of this size, whatever the batch."""

_ROOM = 4 * 2**30  # bytes of free GPU memory per `evaluation_batch` of tasks, four times what they take


@dataclass(frozen=True)
class Evaluation:
    """The metric of every task after every inner step: `values [tasks, n + 1]`.

    Column j is the metric of learners that stop after step j. `reverted` is the fraction of tasks that the
    divergence guard returned to an earlier point of their path. `transductive` is False if no query affects
    the prediction of another. `seed` is that of the tasks.
    """

    metric: Metric
    values: Tensor
    reverted: float
    split: str
    transductive: bool
    seed: int = 0

    def summary(self) -> dict[str, Any]:
        """Mean, 95 % interval, worst task and mean per step, under stable keys."""
        final = self.values[:, -1].double()
        half_width = (
            1.96 * final.std(correction=1) / len(final) ** 0.5 if len(final) > 1 else torch.tensor(0.0)
        )
        name = self.metric.name
        return {
            name: final.mean().item(),
            f"{name}_ci95": half_width.item(),
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

    >>> from pathaware.inference.trained_model import find_run
    >>> from pathaware.training.run_folder import Run
    >>> run = Run.open(find_run("sine"))  # a model that ships with the package
    >>> result = evaluate(run.load("cpu"), run.config.problem, tasks=20)
    >>> result.values.shape, result.summary()["mse"] < 0.2  # before adaptation and after five steps
    (torch.Size([20, 6]), True)

    The tasks depend on the split and the seed only: they are the same for every method and run, and a
    larger evaluation begins with the tasks of a smaller one. `batch` tasks run side by side, by
    default as many as fit in memory. `inductive` normalises queries by the support set's statistics (see
    `pathaware.core.batch_norm`), which matters with batch norm only. The processes of a `world` share the
    tasks, and all of them return the whole result.
    """
    reference = next(learner.parameters())
    if split not in ("train", "val", "test"):
        raise UsageError(f"split: {split!r} must be one of train, val, test")
    at_least(1, tasks=tasks)
    source = problem.tasks(split, reference.device, reference.dtype)
    values, reverted = [], []
    batch = batch or _side_by_side(problem, reference.device)
    for plan in _plans(source, split, seed, world.part(tasks), batch):
        episodes = source.gather(plan)
        examples = (episodes.support_x, episodes.support_y, episodes.query_x)
        predictions = learner.predictions_per_step(*examples, steps=steps, extend=extend, inductive=inductive)
        measured = [problem.measure(output, episodes.query_y) for output in predictions.outputs]
        values.append(torch.stack(measured, dim=1).cpu())
        reverted.append(predictions.reverted.cpu())
    fraction = world.gather(reverted).double().mean().item()
    return Evaluation(problem.metric, world.gather(values), fraction, split, not inductive, seed)


def _side_by_side(problem: Problem, device: torch.device) -> int:
    """The number of tasks per batch: on a GPU as many as fit in part of its free memory."""
    if device.type != "cuda":
        return problem.evaluation_batch
    free, _ = torch.cuda.mem_get_info(device)
    return min(BLOCK, problem.evaluation_batch * max(1, free // _ROOM))


def _plans(source: TaskSource, split: str, seed: int, own: range, batch: int) -> Iterator[Any]:
    """Yield the plans of this process's tasks, `batch` at a time."""
    for first in range(own.start // BLOCK * BLOCK, own.stop, BLOCK):
        plan = source.draw(BLOCK, generator(seed, "evaluate", split, first))
        end = min(BLOCK, own.stop - first)
        for start in range(max(0, own.start - first), end, batch):
            yield plan[start : min(start + batch, end)]
