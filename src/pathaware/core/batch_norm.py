"""Batch norm with statistics of one's choice, in networks that know nothing of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode


class BatchNormMode(TorchFunctionMode, ABC):
    """Inside this block, batch norm normalises as `normalised` does. It changes the function, not modules."""

    @abstractmethod
    def normalised(self, data: Tensor, eps: float) -> Tensor:
        """Mean nought, variance one, by some statistics or other: `[N, C, …]` → `[N, C, …]`."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.batch_norm:
            return self._batch_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _batch_norm(
        self,
        data: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        out = self.normalised(data, eps)
        shape = (1, -1, *(1,) * (data.ndim - 2))
        if weight is not None:
            out = out * weight.view(shape)
        return out if bias is None else out + bias.view(shape)


# Batch norm with the statistics of the support set only.
#
# By custom a query set is normalised by its own statistics, all of it at once: each answer then depends on
# the other questions, which is transductive. Here the support examples go in front of the queries, and
# only they are counted.


class FirstExamplesStatistics(BatchNormMode):
    """Inside this block, batch norm takes mean and variance from the first `count` examples of a batch.

    Examples are the first axis of what batch norm sees in every execution, so it serves `loop`, `vmap` and
    `batched` alike.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def normalised(self, data: Tensor, eps: float) -> Tensor:
        known, axes = data[: self.count], (0, *range(2, data.ndim))
        scale = (known.var(axes, correction=0, keepdim=True) + eps).rsqrt()
        return (data - known.mean(axes, keepdim=True)) * scale


# Batch norm by task, for a network whose parameters all tasks share.


class TaskStatistics(BatchNormMode):
    """Inside this block, examples `[T·N, …]` of T tasks run through a network as one batch, but batch norm
    takes mean and variance from each task by itself; from its first `count` examples, if that is given.

    One ordinary convolution for all tasks is faster than one with groups, which tasks need only where each
    has filters of its own.
    """

    def __init__(self, tasks: int, count: int | None = None) -> None:
        super().__init__()
        self.tasks, self.count = tasks, count

    def normalised(self, data: Tensor, eps: float) -> Tensor:
        by_task: Tensor = data.unflatten(0, (self.tasks, -1))
        if self.count is None:
            columns = by_task.transpose(0, 1).flatten(1, 2)  # [N, T·C, …]: each task has channels of its own
            out: Tensor = F.batch_norm(columns, None, None, training=True, eps=eps)
            again: Tensor = out.unflatten(1, (self.tasks, -1))
            return again.transpose(0, 1).flatten(0, 1)
        known, axes = by_task[:, : self.count], (1, *range(3, by_task.ndim))
        scale = (known.var(axes, correction=0, keepdim=True) + eps).rsqrt()
        return ((by_task - known.mean(axes, keepdim=True)) * scale).flatten(0, 1)


# Batch norm whose statistics are settled: those of the support set, whoever asks afterwards.
#
# Networks here normalise by the batch they see. For a person with one picture that is no good: an answer must
# not depend on what else is asked. After this, each picture is answered by itself, as `--inductive` judges.


def settle_norms(network: nn.Module, support_x: Tensor) -> nn.Module:
    """Give every batch norm of `network` the statistics that `support_x [S, …]` has there, for good."""
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm)]
    handles = [norm.register_forward_pre_hook(_settle) for norm in norms]
    with torch.no_grad():
        network.train()
        network(support_x)
    for handle in handles:
        handle.remove()
    return network.eval()


def _settle(norm: _BatchNorm, arguments: tuple[Tensor, ...]) -> None:
    (x,) = arguments
    axes = (0, *range(2, x.ndim))
    norm.track_running_stats = True
    norm.running_mean = x.mean(axes)
    norm.running_var = x.var(axes, correction=0)  # as it normalises, not as running averages are kept
    norm.num_batches_tracked = torch.ones((), dtype=torch.long, device=x.device)
    # Used at once, so that deeper layers see what they will see later.
    norm.eval()
