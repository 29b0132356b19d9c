"""Evaluation on new tasks: the metric of every task after every inner step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from pathaware.core.episodes import Episodes, TaskSource
from pathaware.core.errors import UsageError
from pathaware.core.few_shot import FewShotLearner, QueryLevel, StepPredictions
from pathaware.core.path import Order
from pathaware.core.rule import Allowed
from pathaware.core.seeding import generator
from pathaware.core.settings import at_least, at_most
from pathaware.training.distributed import ALONE, World
from pathaware.training.metric import ACCURACY, MSE, Metric, accuracies, median, squared_errors
from pathaware.training.problems import Problem
from pathaware.training.refinement import REFINEMENTS, Refinement, refined

Balance = Literal["balanced", "dirichlet"]
"""Classes of a query set: equally frequent, or in proportions drawn from a Dirichlet distribution."""
BALANCES: tuple[Balance, ...] = get_args(Balance)

Views = Literal["single", "mirror"]
"""Views of an image: itself, or itself and its mirror image."""
VIEWS: tuple[Views, ...] = get_args(Views)

LEVEL_TITLES: dict[str, str] = {
    "alone": "each query alone (inductive)",
    "batch": "batch norm over the queries (transductive)",
    "joint": "all queries jointly (transductive)",
}
"""Names of the levels of `QueryLevel` for tables and messages."""

BLOCK = 100
"""Tasks are drawn in blocks of this size, whatever the batch."""
MOST_TASKS = 10**9
SIDE_BY_SIDE = 10
"""Tasks of your own that are evaluated side by side."""

_ROOM = 4 * 2**30  # bytes of free GPU memory per `evaluation_batch` of tasks, four times what they take


@dataclass(frozen=True)
class OwnTasks:
    """The measure of tasks that belong to no problem: accuracy of classes, squared error of values."""

    regression: bool
    label = "tasks"

    @property
    def metric(self) -> Metric:
        return MSE if self.regression else ACCURACY

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (squared_errors if self.regression else accuracies)(outputs, targets)


@dataclass(frozen=True)
class Evaluation:
    """The metric of every task of a `problem` after every inner step: `values [tasks, n + 1]`.

    Column j is the metric of learners that stop after step j. `reverted` is the fraction of tasks that the
    divergence guard returned to an earlier point of their path. `queries` is how much a prediction may know
    of the other queries, `balance` whether classes are equally frequent among them. `seed` is that of the
    tasks. `outputs [tasks, Q, …]` and `targets [tasks, Q, …]` are those after the last step, if kept. `views`
    and `refine` are those of `evaluate`; `snapshots` is the number of averaged checkpoints.
    """

    problem: Problem | OwnTasks
    values: Tensor
    reverted: float
    split: str
    queries: QueryLevel
    balance: Balance = "balanced"
    seed: int = 0
    views: Views = "single"
    refine: Refinement = "none"
    snapshots: int = 1
    outputs: Tensor | None = None
    targets: Tensor | None = None

    @property
    def metric(self) -> Metric:
        return self.problem.metric

    def other_tasks(self, trained: Problem) -> dict[str, Any]:
        """Data set, ways and shots if they are not all those of the trained problem, else nothing."""
        there, here = (
            {name: getattr(each, name, None) for name in ("data", "ways", "shots")}
            for each in (trained, self.problem)
        )
        return {} if here == there else here

    @property
    def transductive(self) -> bool | None:
        """True if queries may affect the predictions of others.

        None for regression whose network has no batch norm over the queries that could do so.
        """
        return None if self.problem.regression and self.queries == "batch" else self.queries != "alone"

    def summary(self) -> dict[str, Any]:
        """Mean, 95 % interval, median, worst task and mean per step, under stable keys.

        Of an even number of tasks, records of earlier versions hold the lower of the two middle values as
        the median.
        """
        final = self.values[:, -1].double()
        name = self.metric.name
        return {
            name: final.mean().item(),
            f"{name}_ci95": interval_over_tasks(final),
            f"{name}_median": median(final),
            self.metric.worst_key: self.metric.worst(final).item(),
            f"{name}_per_step": self.values.double().mean(0).tolist(),
            "tasks": len(final),
            "split": self.split,
            "queries": self.queries,
            "balance": self.balance,
            "views": self.views,
            "refine": self.refine,
            "snapshots": self.snapshots,
            "transductive": self.transductive,
            "reverted": self.reverted,
        }


@torch.no_grad()
def evaluate(
    learner: FewShotLearner,
    problem: Problem | TaskSource | Iterable[Episodes],
    *,
    split: str = "test",
    tasks: int | None = None,
    seed: int = 0,
    batch: int | None = None,
    steps: int | None = None,
    extend: bool = False,
    queries: QueryLevel | None = None,
    balance: Balance = "balanced",
    inductive: bool = False,
    keep_outputs: bool = False,
    views: Views = "single",
    refine: Refinement = "none",
    world: World = ALONE,
    progress: Callable[[int], object] | None = None,
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

    - `problem`: that of a run, with its splits; or tasks of your own, a `TaskSource` or an iterable of
      `Episodes`: their classes are measured by accuracy, their values by the mean squared error.
    - `tasks`: by default the number that the problem names, 600 of a `TaskSource`, or all of an iterable.
    - `queries`: how much a prediction may know of the other queries of its task, see `QueryLevel`; by default
      `joint` for methods with joint inference and `batch` for all others. `inductive=True` is short for
      `queries="alone"`.
    - `balance="dirichlet"` draws query sets of the same size whose classes are not equally frequent (see
      `pathaware.data.unbalanced`).
    - `keep_outputs` keeps outputs and targets, for `reliability`.
    - `views="mirror"` adapts to the support set and its mirror images, and averages the probabilities of each
      query and of its mirror image. The store of the images must allow mirroring.
    - `refine="centre"` subtracts the mean over the queries from the logits of every class, which centres the
      features that a linear last layer sees. The level of such an evaluation is at least `batch`.
    - `refine="means"` predicts by class means of support set and queries, `refine="sinkhorn"` adapts once
      more to both with pseudo-labels, `refine="tim"` fits new class weights to the features of both. All
      three assume that classes are equally frequent among the queries, and the level of such an evaluation is
      `joint`. See `pathaware.training.refinement`.
    - `problem` may be of another data set than the learner was trained on. Its images must be as in training:
      `pathaware.inference.change_ways.load_for(run, device, data=NAME)` returns learner and such a problem,
      see `pathaware.training.problems.CrossDomain`.
    - The processes of a `world` share the tasks, and all of them return the whole result.
    - `progress` is called after every batch with the number of tasks that this process has done.
    """
    level = _level(learner, queries, inductive, refine)
    reference = next(learner.parameters())
    if split not in ("train", "val", "test"):
        raise UsageError(f"split: {split!r} must be one of train, val, test")
    at_least(1, **{name: n for name, n in (("tasks", tasks), ("batch", batch)) if n is not None})
    at_most(MOST_TASKS, tasks=tasks or 0)
    if isinstance(problem, TaskSource) or not hasattr(problem, "evaluation_tasks"):
        if views != "single" or balance != "balanced":
            raise UsageError("views and balance belong to problems; leave them out for tasks of your own")
        measured_by, every = _own_tasks(problem, split, seed, tasks, batch or SIDE_BY_SIDE, reference, world)
    else:
        known = cast(Problem, problem)
        _check_views(known, views)
        source = _source(known, split, balance, reference, learner)
        own = world.part(tasks or known.evaluation_tasks)
        side_by_side = batch or _side_by_side(known, reference.device, views, refine)
        measured_by, every = known, map(source.gather, _plans(source, split, seed, own, side_by_side))
    if refine != "none" and measured_by.metric is not ACCURACY:
        raise UsageError(f"{refine}: {measured_by.label} has no classes; use none", field="refine")
    values, reverted, outputs, targets, done, averaged = [], [], [], [], 0, 1
    for episodes in every:
        how: dict[str, Any] = {"steps": steps, "extend": extend, "queries": level}
        predictions = predict_episodes(learner, episodes, views, refine, **how)
        measured = [measured_by.measure(output, episodes.query_y) for output in predictions.outputs]
        values.append(torch.stack(measured, dim=1))
        reverted.append(predictions.reverted)
        averaged = predictions.learners
        if keep_outputs:
            outputs.append(predictions.outputs[-1])
            targets.append(episodes.query_y)
        done += len(episodes)
        if progress:
            progress(done)
    # Only now: a look at a result would keep the host from preparing the next batch while a GPU computes.
    fraction = world.gather([part.cpu() for part in reverted]).double().mean().item()
    gathered = world.gather([part.cpu() for part in values])
    options = (balance, seed, views, refine, averaged)
    result = Evaluation(measured_by, gathered, fraction, split, level, *options)
    if not keep_outputs:
        return result
    kept = [world.gather([part.cpu() for part in parts]) for parts in (outputs, targets)]
    return replace(result, outputs=kept[0], targets=kept[1])


def _own_tasks(
    given: TaskSource | Iterable[Episodes],
    split: str,
    seed: int,
    tasks: int | None,
    batch: int,
    like: Tensor,
    world: World,
) -> tuple[Problem | OwnTasks, Iterator[Episodes]]:
    """How tasks that belong to no problem are measured, and the tasks of this process."""
    if isinstance(given, TaskSource):
        plans = _plans(given, split, seed, world.part(tasks or 600), batch)
        found: Iterator[Episodes] = (given.gather(plan) for plan in plans)
    else:
        found = _first_tasks(given, MOST_TASKS if tasks is None else tasks, like)
    first = next(found, None)
    if first is None:
        raise UsageError("there are none", field="tasks")
    return OwnTasks(first.query_y.is_floating_point()), chain([first], found)


def _first_tasks(episodes: Iterable[Episodes], tasks: int, like: Tensor) -> Iterator[Episodes]:
    """The first tasks of an iterable, on the device and in the precision of `like`."""
    for each in episodes:
        yield each[:tasks].to(like.device, like.dtype)
        tasks -= len(each)
        if tasks <= 0:
            return


def predict_episodes(
    learner: FewShotLearner, episodes: Episodes, views: Views, refine: Refinement, **options: Any
) -> StepPredictions:
    """Adapt to episodes and predict their queries after every step; `options`: see `predictions_per_step`.

    Dropout is off, as it is in use.
    """
    x, y, queries = episodes.support_x, episodes.support_y, episodes.query_x
    if views == "mirror":
        x, y, queries = with_mirror_images(x), torch.cat([y, y], dim=1), with_mirror_images(queries)
    average = mean_of_views if views == "mirror" else _unchanged
    if refine != "none":
        options["queries"] = "joint" if learner.query_level(None) == "joint" else "batch"
    with _without_dropout(learner):
        found = learner.predictions_per_step(x, y, queries, **options)
        if refine != "none":
            found = refined(refine, learner, found, (x, y, queries), average, options)
    return replace(found, outputs=[average(output) for output in found.outputs])


@contextmanager
def _without_dropout(learner: FewShotLearner) -> Iterator[None]:
    """A context in which all modules are in evaluation mode, except for those that normalise by a batch."""
    active = [m for m in learner.modules() if m.training and not isinstance(m, _NormBase)]
    for module in active:
        module.training = False  # without its children, which `eval` would change, too
    try:
        yield
    finally:
        for module in active:
            module.training = True


class SnapshotMean(FewShotLearner):
    """The mean of the class probabilities of several learners of one method, for evaluation."""

    def __init__(self, learners: Sequence[FewShotLearner]) -> None:
        super().__init__()
        self.learners = nn.ModuleList(learners)
        self.model, self.loss = learners[0].model, learners[0].loss

    @property
    def allows(self) -> frozenset[Allowed]:
        return cast(FewShotLearner, self.learners[0]).allows

    def predictions_per_step(self, *examples: Tensor, **options: Any) -> StepPredictions:
        found = [
            cast(FewShotLearner, each).predictions_per_step(*examples, **options) for each in self.learners
        ]
        steps = zip(*(each.outputs for each in found), strict=True)
        logs = [torch.stack([o.log_softmax(-1) for o in outputs]) for outputs in steps]
        means = [each.logsumexp(0) - math.log(len(found)) for each in logs]
        return StepPredictions(means, torch.stack([each.reverted for each in found]).any(0), len(found))

    def adapted_losses(self, episodes: Episodes, order: Order = "second") -> Tensor:
        raise UsageError("snapshots: a mean of learners is for evaluation only")

    def adapt(self, support_x: Tensor, support_y: Tensor) -> nn.Module:
        raise UsageError("snapshots: a mean of learners is for evaluation only")


def with_mirror_images(x: Tensor) -> Tensor:
    """Images `[T, N, C, H, W]` followed by their mirror images: `[T, 2 N, C, H, W]`."""
    return torch.cat([x, x.flip(-1)], dim=1)


def mean_of_views(outputs: Tensor) -> Tensor:
    """Logarithms of the mean probabilities of two views: logits `[T, 2 Q, classes]` → `[T, Q, classes]`."""
    one, other = outputs.log_softmax(-1).chunk(2, dim=1)
    return torch.logaddexp(one, other) - math.log(2)


def _unchanged(outputs: Tensor) -> Tensor:
    return outputs


def _check_views(problem: Problem, views: Views) -> None:
    if views not in VIEWS:
        raise UsageError(f"{views!r} must be one of {', '.join(VIEWS)}", field="views")
    if views == "mirror" and problem.frozen:
        raise UsageError(
            "mirror: a frozen network mirrors its support images itself; use single", field="views"
        )
    if views == "mirror" and not problem.inputs().get("mirror"):
        raise UsageError(
            f"mirror: {problem.label} has no images that may be mirrored, or those of the training may not",
            field="views",
        )


def interval_over_tasks(values: Tensor) -> float:
    """Half the width of the normal 95 % interval of the mean of these tasks; 0 for a single one."""
    return (1.96 * values.std(correction=1) / len(values) ** 0.5).item() if len(values) > 1 else 0.0


def _level(
    learner: FewShotLearner, queries: QueryLevel | None, inductive: bool, refine: Refinement
) -> QueryLevel:
    if inductive and queries not in (None, "alone"):
        raise UsageError(f"{queries!r} contradicts inductive, which means alone", field="queries")
    if refine not in REFINEMENTS:
        raise UsageError(f"{refine!r} must be one of {', '.join(REFINEMENTS)}", field="refine")
    if refine == "none":
        return learner.query_level("alone" if inductive else queries)
    if refine == "centre":
        if inductive or queries == "alone":
            raise UsageError("centre uses the mean of all queries; leave out the level", field="queries")
        return "joint" if learner.query_level(queries) == "joint" else "batch"
    if inductive or queries not in (None, "joint"):
        raise UsageError(f"{refine} uses all queries jointly; leave out the level", field="queries")
    return "joint"


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


def _side_by_side(problem: Problem, device: torch.device, views: Views, refine: Refinement) -> int:
    """The number of tasks per batch: on a GPU as many as fit in part of its free memory."""
    larger = (2 if views == "mirror" else 1) * (4 if refine in ("sinkhorn", "tim") else 1)
    if device.type != "cuda":
        return max(1, problem.evaluation_batch // larger)
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(BLOCK, problem.evaluation_batch * max(1, free // _ROOM)) // larger)


def _plans(source: TaskSource, split: str, seed: int, own: range, batch: int) -> Iterator[Any]:
    """Yield the plans of this process's tasks, `batch` at a time."""
    for first in range(own.start // BLOCK * BLOCK, own.stop, BLOCK):
        plan = source.draw(BLOCK, generator(seed, "evaluate", split, first))
        end = min(BLOCK, own.stop - first)
        for start in range(max(0, own.start - first), end, batch):
            yield plan[start : min(start + batch, end)]
