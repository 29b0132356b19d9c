"""Batch norm with the statistics of the support set only.

By custom a query set is normalised by its own statistics, all of it at once: each answer then depends on
the other questions, which is transductive. Here the support examples go in front of the queries, and
only they are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class FirstExamplesStatistics(TorchFunctionMode):
    """Inside this block, batch norm takes mean and variance from the first `count` examples of a batch.

    It changes the function, not the modules, and examples are the first axis of what batch norm sees in
    every execution, so it serves `loop`, `vmap` and `batched` alike.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

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
        axes = (0, *range(2, data.ndim))
        shape = (1, -1, *(1,) * (data.ndim - 2))
        known = data[: self.count]
        out = (data - known.mean(axes, keepdim=True)) * (
            known.var(axes, correction=0, keepdim=True) + eps
        ).rsqrt()
        if weight is not None:
            out = out * weight.view(shape)
        return out if bias is None else out + bias.view(shape)
