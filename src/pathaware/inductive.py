"""Batch norm with the statistics of the support set only.

By custom a query set is normalised by its own statistics, all of it at once: each answer then depends on
the other questions, which is transductive. Here the support examples go in front of the queries, and
only they are counted.
"""

from __future__ import annotations

from torch import Tensor

from pathaware.batch_norm import BatchNormMode


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
