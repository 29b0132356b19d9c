"""Batch norm by task, for a network whose parameters all tasks share."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from pathaware.batch_norm import BatchNormMode


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
