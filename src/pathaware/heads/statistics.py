"""Batch norm by task, for a network whose parameters all tasks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class TaskStatistics(TorchFunctionMode):
    """Inside this block, examples `[T·N, …]` of T tasks run through a network as one batch, but batch norm
    takes mean and variance from each task by itself; from its first `count` examples, if that is given.

    One ordinary convolution for all tasks is faster than one with groups, which tasks need only where each
    has filters of its own.
    """

    def __init__(self, tasks: int, count: int | None = None) -> None:
        super().__init__()
        self.tasks, self.count = tasks, count

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
        by_task = data.unflatten(0, (self.tasks, -1))
        if self.count is None:
            columns = by_task.transpose(0, 1).flatten(1, 2)  # [N, T·C, …]: each task has channels of its own
            out: Tensor = F.batch_norm(columns, None, None, training=True, eps=eps)
            out = out.unflatten(1, (self.tasks, -1)).transpose(0, 1).flatten(0, 1)
        else:
            known, axes = by_task[:, : self.count], (1, *range(3, by_task.ndim))
            scale = (known.var(axes, correction=0, keepdim=True) + eps).rsqrt()
            out = ((by_task - known.mean(axes, keepdim=True)) * scale).flatten(0, 1)
        shape = (1, -1, *(1,) * (data.ndim - 2))
        if weight is not None:
            out = out * weight.view(shape)
        return out if bias is None else out + bias.view(shape)
