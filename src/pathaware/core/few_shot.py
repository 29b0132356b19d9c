"""The interface of all few-shot learners, gradient-based or not, and how much a prediction may know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from pathaware.core.batch_norm import FrozenBatchNorm, freeze_batch_norm
from pathaware.core.episodes import Episodes, check_examples, check_tensors
from pathaware.core.errors import UsageError
from pathaware.core.losses import Loss
from pathaware.core.path import Order

QueryLevel = Literal["alone", "batch", "joint"]
"""How much a prediction may know of the other queries of its task.

- `alone`: nothing (inductive); batch norm uses the statistics of the support set, or constant ones.
- `batch`: batch norm uses the statistics of all queries together, and nothing else does.
- `joint`: the method may use all queries together, for example in its inner loop.
"""
QUERY_LEVELS: tuple[QueryLevel, ...] = get_args(QueryLevel)


@dataclass(frozen=True)
class StepPredictions:
    """Outputs for the query sets of T tasks, each `[T, Q, …]`: before adaptation, then after every step.

    `reverted [T]` marks the tasks that the divergence guard returned to an earlier point of their path.
    """

    outputs: list[Tensor]
    reverted: Tensor


class FewShotLearner(nn.Module, ABC):
    """Interface of all few-shot learners, gradient-based or not.

    A learner adapts to tasks by their support sets. Meta-training learns its parameters.
    """

    model: nn.Module
    loss: Loss
    checkpoint: bool = False
    """Recompute activations in the backward pass to save memory."""

    @property
    def compilable(self) -> bool:
        """True if compiling the whole meta-iteration pays on a CPU."""
        return False

    @property
    def inner_steps(self) -> int:
        """The number of inner steps; 0 if there is no inner loop."""
        return 0

    @property
    def execution(self) -> object:
        """How the network runs, where there is a choice: another object once it has been chosen anew."""
        return None

    @property
    def adapted_names(self) -> tuple[str, ...]:
        """Names of the model's parameters that inner steps change; empty if there is no inner loop."""
        return ()

    @property
    def joint(self) -> bool:
        """True if the learner can use all queries of a task together (`joint` inference)."""
        return False

    @property
    def inductive(self) -> bool:
        """True if there is batch norm and its statistics are constant; then `batch` inference is `alone`."""
        modules = list(self.modules())
        frozen = any(isinstance(module, FrozenBatchNorm) for module in modules)
        return frozen and not any(isinstance(module, _BatchNorm) for module in modules)

    def query_level(self, queries: QueryLevel | None) -> QueryLevel:
        """Check a level; None means the learner's own: `joint` if it has joint inference, else `batch`.

        With constant statistics (`inductive`), `batch` is returned as `alone`.
        """
        if queries is None:
            queries = "joint" if self.joint else "batch"
        if queries not in QUERY_LEVELS:
            raise UsageError(f"{queries!r} must be one of {', '.join(QUERY_LEVELS)}", field="queries")
        if queries == "joint" and not self.joint:
            raise UsageError("the method has no joint inference; use alone or batch", field="queries")
        return "alone" if queries == "batch" and self.inductive else queries

    def inner_gradients(self, episodes: Episodes, name: str) -> list[Tensor]:
        """The gradients of one adapted parameter along the path: a tensor `[T, …]` per inner step."""
        raise UsageError(f"method: {type(self).__name__} takes no inner gradients")

    @abstractmethod
    def task_losses(self, episodes: Episodes, order: Order = "second") -> Tensor:
        """The loss on each query set after adaptation: `[T]`, differentiable in all parameters."""

    @abstractmethod
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

        `queries` is how much a prediction may know of the other queries, see `query_level`.
        """

    @abstractmethod
    def adapt(self, support_x: Tensor, support_y: Tensor) -> nn.Module:
        """Adapt to one task, `support_x [S, …]`; return a network that is independent of this learner."""

    def adapt_and_predict(
        self, support_x: Tensor, support_y: Tensor, query_x: Tensor
    ) -> tuple[nn.Module, StepPredictions]:
        """Adapt once; return the adapted network and its inductive predictions after every step."""
        examples = support_x[None], support_y[None], query_x[None]
        with torch.no_grad():
            return self.adapt(support_x, support_y), self.predictions_per_step(*examples, queries="alone")

    def adapt_each(self, support_x: Tensor, support_y: Tensor) -> list[tuple[nn.Module, StepPredictions]]:
        """Adapt to T tasks, `support_x [T, S, …]`.

        For each task, return the adapted network, with batch norm frozen to the support set, and its
        inductive predictions for the support set after every step.
        """
        adapted = []
        for x, y in zip(support_x, support_y, strict=True):
            network, predictions = self.adapt_and_predict(x, y, x)
            adapted.append((freeze_batch_norm(network, x), predictions))
        return adapted

    def task_threads(self, tasks: int) -> AbstractContextManager[None]:
        """A context in which each thread may run a group of these tasks, not a part of every operation."""
        return nullcontext()

    def meta_loss(self, episodes: Episodes, order: Order = "second") -> Tensor:
        """The mean query loss after adaptation, differentiable in all parameters."""
        check_kind(episodes, Episodes, "episodes")
        check_support(episodes.support_x, episodes.support_y)
        return self.task_losses(episodes, order).mean()


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


def wrong_features(weight: Tensor, found: int) -> UsageError:
    """The error for inputs whose number of features is not that of a linear layer, `weight [T, out, in]`."""
    outputs, inputs = weight.shape[1:]
    return UsageError(f"inputs: the layer Linear({inputs}, {outputs}) takes {inputs} features, got {found}")


def check_support(x: Tensor, y: Tensor) -> None:
    """Raise unless these are the support sets of at least one task, `x [T, S, …]` and `y [T, S, …]`."""
    check_tensors(support_x=x, support_y=y)
    check_examples(x, y, "support set")
    if len(x) == 0:
        raise UsageError("support set: there is no task; at least one")


def refuse_running_statistics(model: nn.Module) -> None:
    """Raise if batch norm keeps running averages, which would leak from task to task."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            raise UsageError(
                f"model: {name or 'it'} keeps running statistics, which tasks would share; build it with "
                "track_running_stats=False or call torch.func.replace_all_batch_norm_modules_(model)"
            )
