"""The interface of all few-shot learners, gradient-based or not, and how much a prediction may know."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pathaware.core.batch_norm import FrozenBatchNorm, freeze_batch_norm
from pathaware.core.episodes import Episodes, check_examples, check_tensors
from pathaware.core.errors import UsageError
from pathaware.core.exports import Renamed
from pathaware.core.losses import Loss
from pathaware.core.meta_gradient import MetaGradient, Unrolled
from pathaware.core.path import Order, autocasts, check_order
from pathaware.core.rule import Allowed

if TYPE_CHECKING:
    from pathaware.core.execution import Execution

QueryLevel = Literal["alone", "batch", "joint"]
"""How much a prediction may know of the other queries of its task.

- `alone`: nothing (inductive); batch norm uses the statistics of the support set, or constant ones.
- `batch`: batch norm uses the statistics of all queries together, and nothing else does.
- `joint`: the method may use all queries together, for example in its inner loop.
"""
QUERY_LEVELS: tuple[QueryLevel, ...] = get_args(QueryLevel)
Part = TypeVar("Part", bound=nn.Module)


@dataclass(frozen=True)
class StepPredictions:
    """Outputs for the query sets of T tasks, each `[T, Q, …]`: before adaptation, then after every step.

    `reverted [T]` marks the tasks that the divergence guard returned to an earlier point of their path.
    `learners` is the number of learners whose predictions were averaged.
    """

    outputs: list[Tensor]
    reverted: Tensor
    learners: int = 1


@dataclass(frozen=True)
class AdaptedTasks:
    """T tasks after adaptation, as differentiable functions of inputs `[T, N, …]`.

    `features` returns the inputs `[T, N, F]` of the last layer, `outputs` its outputs `[T, N, …]`.
    """

    features: Callable[[Tensor], Tensor]
    outputs: Callable[[Tensor], Tensor]


class FewShotLearner(nn.Module, ABC):
    """Interface of all few-shot learners, gradient-based or not.

    A learner adapts to tasks by their support sets. Meta-training learns its parameters.
    """

    model: nn.Module
    loss: Loss
    meta_gradient: MetaGradient
    """How the loss after adaptation becomes a gradient of the learner's parameters."""
    checkpoint: bool = False
    """Recompute activations in the backward pass to save memory."""
    task_losses, adapt_and_predict = Renamed("adapted_losses"), Renamed("adapt_each")

    @property
    def execution(self) -> Execution | None:
        """How the network runs; None if there is no choice. A new object whenever it is chosen again."""
        return None

    @property
    def allows(self) -> frozenset[Allowed]:
        """The things that the rule or the head can do beyond the usual classification."""
        return frozenset()

    def for_classes(self, classes: int) -> FewShotLearner | None:
        """This learner for another number of classes, sharing all parameters; None if it has to be converted,
        see `pathaware.inference.change_ways`."""
        return None

    @property
    def _inductive(self) -> bool:
        """True if there is batch norm and its statistics are constant; then `batch` inference is `alone`."""
        modules = list(self.modules())
        frozen = any(isinstance(module, FrozenBatchNorm) for module in modules)
        return frozen and not any(isinstance(module, _BatchNorm) for module in modules)

    def query_level(self, queries: QueryLevel | None) -> QueryLevel:
        """Check a level; None means the learner's own: `joint` if it has joint inference, else `batch`.

        With constant statistics, `batch` is returned as `alone`.
        """
        if queries is None:
            queries = "joint" if "joint queries" in self.allows else "batch"
        if queries not in QUERY_LEVELS:
            raise UsageError(f"{queries!r} must be one of {', '.join(QUERY_LEVELS)}", field="queries")
        if queries == "joint" and "joint queries" not in self.allows:
            raise UsageError("the method has no joint inference; use alone or batch", field="queries")
        return "alone" if queries == "batch" and self._inductive else queries

    @abstractmethod
    def adapted_losses(self, episodes: Episodes, order: Order = "second") -> Tensor:
        """The loss on each query set after adaptation: `[T]`, differentiable in all parameters."""

    def features(self, x: Tensor) -> Tensor:
        """Inputs `[T, N, F]` of the last layer before adaptation; batch norm uses the statistics of each
        task."""
        raise self._lacks("features of its own")

    def adapted(
        self,
        support_x: Tensor,
        support_y: Tensor,
        *,
        query_x: Tensor | None = None,
        order: Order = "none",
        weights: Tensor | None = None,
    ) -> AdaptedTasks:
        """Adapt T tasks differentiably, `support_x [T, S, …]`; `query_x [T, Q, …]` is for joint inference.

        With `weights [T, S]` of the support examples, outputs are differentiable in these instead, and each
        is predicted alone; for learners that allow `weights`.
        """
        raise self._lacks("outputs that can be differentiated")

    def _lacks(self, what: str) -> UsageError:
        return UsageError(f"method: {type(self).__name__} has no {what}")

    def predictions_per_step(
        self,
        support_x: Tensor,
        support_y: Tensor,
        query_x: Tensor,
        *,
        steps: int | None = None,
        extend: bool = False,
        queries: QueryLevel | None = None,
    ) -> StepPredictions:
        """Adapt T tasks and predict their queries after every step. Call it without gradients.

        More `steps` than the learner was trained for need `extend=True`. `queries` is how much a prediction
        may know of the other queries, see `query_level`.
        """
        check_support(support_x, support_y, query_x)
        level = self.query_level(queries)
        with explain_errors(self, support_x=support_x, support_y=support_y, query_x=query_x):
            return self._predictions(support_x, support_y, query_x, level, self._steps(steps, extend))

    def _predictions(
        self, support_x: Tensor, support_y: Tensor, query_x: Tensor, level: QueryLevel, steps: int
    ) -> StepPredictions:
        """`predictions_per_step`, of arguments that are checked."""
        raise self._lacks("predictions")

    def _steps(self, steps: int | None, extend: bool) -> int:
        """The number of steps to take; None means all."""
        if steps not in (None, 1) or extend:
            raise UsageError("steps: this method has no inner steps; leave it out")
        return 1

    @abstractmethod
    def adapt(self, support_x: Tensor, support_y: Tensor) -> nn.Module:
        """Adapt to one task, `support_x [S, …]`; return a network that is independent of this learner."""

    def adapt_each(self, support_x: Tensor, support_y: Tensor) -> list[tuple[nn.Module, StepPredictions]]:
        """Adapt to T tasks, `support_x [T, S, …]`.

        For each task, return the adapted network, with batch norm frozen to the support set, and its
        inductive predictions for the support set after every step.
        """
        adapted = []
        for x, y in zip(support_x, support_y, strict=True):
            with torch.no_grad():
                network = freeze_batch_norm(self.adapt(x, y), x)
                predictions = self.predictions_per_step(x[None], y[None], x[None], queries="alone")
            adapted.append((network, predictions))
        return adapted

    def _task_threads(self, tasks: int) -> AbstractContextManager[None]:
        """`MetaGradient.task_threads`, for this learner."""
        return nullcontext()

    def backward(self, episodes: Episodes, weight: float | None = None) -> Tensor:
        """Add the meta-gradient of these tasks to `.grad` of all parameters; return the tasks' losses `[T]`.

        `weight` is the factor of each task, by default 1/T; parts of a larger batch take that of the whole.
        """
        _check_tasks(episodes)
        return self.meta_gradient.backward(self, episodes, weight or 1 / len(episodes))

    def meta_loss(self, episodes: Episodes, order: Order | None = None) -> Tensor:
        """The mean loss after adaptation. Its `backward()` adds the meta-gradient of `backward`.

        Under `torch.no_grad` it is the value alone, as `query_loss` is.
        """
        _check_tasks(episodes)
        if order is not None:
            check_order(order)
            instead = {"none": "learner.query_loss", "first": "meta_gradient=Unrolled('first')"}
            warnings.warn(
                f"meta_loss: order goes in 0.4; use {instead.get(order, 'meta_gradient=Unrolled()')}",
                FutureWarning,
                stacklevel=2,
            )
        if order == "none" or not torch.is_grad_enabled():
            return self.query_loss(episodes)
        meta_gradient = self.meta_gradient if order is None else Unrolled(order)
        return meta_gradient.loss(self, episodes)

    @torch.no_grad()
    def query_loss(self, episodes: Episodes) -> Tensor:
        """The mean loss of the query sets after adaptation, without a graph; for validation."""
        _check_tasks(episodes)
        return self.adapted_losses(episodes, "none").mean()

    def progress(self, fraction: float) -> bool:
        """Tell the learner which fraction of training is done, for methods with a schedule such as MAML++.

        True if a recorded CUDA graph of a step is outdated.
        """
        return self.meta_gradient.on_progress(fraction, self)

    def forward(self, episodes: Episodes) -> Tensor:
        """`meta_loss`, for wrappers that call a module, such as `DistributedDataParallel`."""
        return self.meta_loss(episodes)


def part_of(learner: nn.Module, kind: type[Part]) -> Part | None:
    """The first part of this kind in a learner or a network, such as its `Rule`; None if it has none."""
    return next((module for module in learner.modules() if isinstance(module, kind)), None)


def _check_tasks(episodes: Episodes) -> None:
    check_kind(episodes, Episodes, "episodes")
    check_support(episodes.support_x, episodes.support_y)


def check_kind(value: object, kind: type, name: str) -> None:
    """Raise unless the argument of this name is an instance of a class."""
    if not isinstance(value, kind):
        given = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
        raise UsageError(f"it must be an instance of {kind.__name__}, got {given}", field=name)


def check_loss(loss: object) -> None:
    """Raise if a loss is a class or cannot be called."""
    if isinstance(loss, type) or not callable(loss):
        name = loss.__name__ if isinstance(loss, type) else repr(loss)
        raise UsageError(f"{name} must be a function or an instance, such as nn.MSELoss()", field="loss")


def check_outputs(outputs: object) -> Tensor:
    """The outputs of a network; raise unless they are one tensor."""
    if not isinstance(outputs, Tensor):
        raise UsageError(f"it must return one tensor, got {type(outputs).__name__}", field="model")
    return outputs


@contextmanager
def explain_errors(learner: FewShotLearner, **tensors: Tensor | None) -> Iterator[None]:
    """A context in which a learner runs its network on these tensors, `[T, N, …]`.

    Tensors on a device without any of the network's tensors are refused. PyTorch's errors about dtypes and
    shapes are explained, if the tensors are the cause: a dtype may be wrong for one network and right for
    another, such as integers for an embedding.
    """
    like, given = next(learner.parameters(), None), {n: t for n, t in tensors.items() if t is not None}
    for name, tensor in given.items():
        if like is None or tensor.device == like.device:
            continue
        if tensor.device not in {each.device for each in chain(learner.parameters(), learner.buffers())}:
            found = f"it must be on {like.device} like the network, got {tensor.device}"
            raise UsageError(f'{found}; call .to("{like.device}")', field=name)
    try:
        yield
    except (UsageError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        reason = _wrong_dtype(str(error), like, given) or _different_shapes(str(error), given)
        if reason is None:
            raise
        raise reason from error


def _wrong_dtype(message: str, like: Tensor | None, tensors: Mapping[str, Tensor]) -> UsageError | None:
    if like is None or autocasts(like) or not re.search("type|not implemented for", message):
        return None
    for name, tensor in tensors.items():
        labels = name.endswith("_y") and not tensor.is_floating_point()
        if tensor.dtype != like.dtype and not labels:
            wanted = f"it must be of dtype {like.dtype} like the network, got {tensor.dtype}"
            return UsageError(f"{wanted}; call .to({like.dtype})", field=name)
    return None


def _different_shapes(message: str, tensors: Mapping[str, Tensor]) -> UsageError | None:
    support, query = (tensors.get(name) for name in ("support_x", "query_x"))
    if support is None or query is None or support.shape[2:] == query.shape[2:]:
        return None
    if not re.search("shape|size|dim|images", message):
        return None
    shapes = list(query.shape[2:]), list(support.shape[2:])
    return UsageError(f"its inputs have shape {shapes[0]}, those of support_x {shapes[1]}", field="query_x")


def wrong_features(weight: Tensor, found: int) -> UsageError:
    """The error for inputs whose number of features is not that of a linear layer, `weight [T, out, in]`."""
    outputs, inputs = weight.shape[1:]
    return UsageError(f"inputs: the layer Linear({inputs}, {outputs}) takes {inputs} features, got {found}")


def check_support(x: Tensor, y: Tensor, query_x: Tensor | None = None) -> None:
    """Raise unless these are the support sets of at least one task, `x [T, S, …]` and `y [T, S, …]`, and
    `query_x [T, Q, …]` queries of the same tasks."""
    check_tensors(support_x=x, support_y=y)
    check_examples(x, y, "support set")
    if len(x) == 0:
        raise UsageError("support set: there is no task; at least one")
    if query_x is None:
        return
    check_tensors(query_x=query_x)
    if query_x.ndim < 2 or len(query_x) != len(x):
        raise UsageError(
            f"it must have the shape [{len(x)}, Q, …], for the tasks of support_x, got {list(query_x.shape)}",
            field="query_x",
        )


def refuse_running_statistics(model: nn.Module) -> None:
    """Raise if batch norm keeps running averages, which would leak from task to task."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            raise UsageError(
                f"model: {name or 'it'} keeps running statistics, which tasks would share; build it with "
                "track_running_stats=False or call torch.func.replace_all_batch_norm_modules_(model)"
            )
