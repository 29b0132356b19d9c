"""Batch norm with statistics of one's choice, in networks that know nothing of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor
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
