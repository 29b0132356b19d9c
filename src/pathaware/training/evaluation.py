"""Evaluation on new tasks: the metric of every task after every inner step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from pathaware.core.episodes import TaskSource
from pathaware.core.errors import UsageError
from pathaware.core.learner import FewShotLearner, QueryLevel
from pathaware.core.seeding import generator
from pathaware.core.settings import at_least
from pathaware.training.distributed import ALONE, World
from pathaware.training.metric import Metric
from pathaware.training.problems import Problem

Balance = Literal["balanced", "dirichlet"]
"""Classes of a query set: equally frequent, or in proportions drawn from a Dirichlet distribution."""
BALANCES: tuple[Balance, ...] = get_args(Balance)

LEVEL_TITLES: dict[str, str] = {
    "alone": "each query alone (inductive)",
    "batch": "batch norm over the queries (transductive)",
    "joint": "all queries jointly (transductive)",
}
"""Names of the levels of `QueryLevel` for tables and messages."""

BLOCK = 100
"""Tasks are drawn in blocks of this size, whatever the batch."""

_ROOM = 4 * 2**30  # bytes of free GPU memory per `evaluation_batch` of tasks, four times what they take


@dataclass(frozen=True)
class Evaluation:
    """The metric of every task after every inner step: `values [tasks, n + 1]`.

    Column j is the metric of learners that stop after step j. `reverted` is the fraction of tasks that the
    divergence guard returned to an earlier point of their path. `queries` is how much a prediction may know
    of the other queries, `balance` whether classes are equally frequent among them. `seed` is that of the
    tasks.
    """

    metric: Metric
    values: Tensor
    reverted: float
    split: str
    queries: QueryLevel
    balance: Balance = "balanced"
    seed: int = 0

    @property
    def transductive(self) -> bool:
        """True if queries may affect the predictions of others."""
        return self.queries != "alone"

    def summary(self) -> dict[str, Any]:
        """Mean, 95 % interval, median, worst task and mean per step, under stable keys."""
        final = self.values[:, -1].double()
        name = self.metric.name
        return {
            name: final.mean().item(),
            f"{name}_ci95": interval_over_tasks(final),
            f"{name}_median": final.median().item(),
            self.metric.worst_key: self.metric.worst(final).item(),
            f"{name}_per_step": self.values.double().mean(0).tolist(),
            "tasks": len(final),
            "split": self.split,
            "queries": self.queries,
            "balance": self.balance,
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
    queries: QueryLevel | None = None,
    balance: Balance = "balanced",
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
    default as many as fit in memory.

    - `queries`: how much a prediction may know of the other queries of its task, see `QueryLevel`; by default
      `joint` for methods with joint inference and `batch` for all others. `inductive=True` is another way to
      write `queries="alone"`.
    - `balance="dirichlet"` draws query sets of the same size whose classes are not equally frequent (see
      `pathaware.data.unbalanced`).
    - The processes of a `world` share the tasks, and all of them return the whole result.
    """
    level = learner.query_level(_level(queries, inductive))
    reference = next(learner.parameters())
    if split not in ("train", "val", "test"):
        raise UsageError(f"split: {split!r} must be one of train, val, test")
    at_least(1, tasks=tasks)
    source = _source(problem, split, balance, reference, learner)
    values, reverted = [], []
    batch = batch or _side_by_side(problem, reference.device)
    for plan in _plans(source, split, seed, world.part(tasks), batch):
        episodes = source.gather(plan)
        examples = (episodes.support_x, episodes.support_y, episodes.query_x)
        predictions = learner.predictions_per_step(*examples, steps=steps, extend=extend, queries=level)
        measured = [problem.measure(output, episodes.query_y) for output in predictions.outputs]
        values.append(torch.stack(measured, dim=1).cpu())
        reverted.append(predictions.reverted.cpu())
    fraction = world.gather(reverted).double().mean().item()
    return Evaluation(problem.metric, world.gather(values), fraction, split, level, balance, seed)


def interval_over_tasks(values: Tensor) -> float:
    """Half the width of the normal 95 % interval of the mean of these tasks; 0 for a single one."""
    return (1.96 * values.std(correction=1) / len(values) ** 0.5).item() if len(values) > 1 else 0.0


def _level(queries: QueryLevel | None, inductive: bool) -> QueryLevel | None:
    if inductive and queries not in (None, "alone"):
        raise UsageError(f"{queries!r} contradicts inductive, which means alone", field="queries")
    return "alone" if inductive else queries


def _source(
    problem: Problem, split: str, balance: Balance, reference: Tensor, learner: FewShotLearner
) -> TaskSource:
    """The tasks of an evaluation, on the device and in the precision of `reference`."""
    if balance not in BALANCES:
        raise UsageError(f"{balance!r} must be one of {', '.join(BALANCES)}", field="balance")
    source = problem.tasks(split, reference.device, reference.dtype)
    if balance != "balanced":
        from pathaware.data.episodes import ImageEpisodes
        from pathaware.data.unbalanced import UnbalancedQueries

        if not isinstance(source, ImageEpisodes):
            raise UsageError(f"{problem.name} has no classes that could be unbalanced", field="balance")
        source = UnbalancedQueries(source)
    return tasks_for(learner, problem, source)


def tasks_for(
    learner: FewShotLearner, problem: Problem, source: TaskSource, *, observe: bool = False
) -> TaskSource:
    """The tasks as the learner takes them: with features in place of images if its body is frozen.

    With `observe`, before training, its head may first take statistics of all training features.
    """
    if not problem.frozen:
        return source
    from pathaware.training.features import feature_tasks

    mirror_support = bool(getattr(problem, "mirror_support", False))
    return feature_tasks(source, learner, mirror_support=mirror_support, observe=observe)


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
