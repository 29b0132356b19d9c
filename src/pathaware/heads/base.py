"""What a head is: given features of a support set and its labels, what do the queries get?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from pathaware.losses import Loss
from pathaware.models.head import last_linear

Fitted = tuple[Tensor, ...]
"""What a head keeps of the support sets, each tensor with a leading task axis."""


class Head(nn.Module, ABC):
    """Takes the place of a network's last linear layer. What it learns are parameters of this module.

    `features` and `outputs` are that layer's sizes: F, and the number of classes, or of values to predict.
    """

    regression: ClassVar[bool] = False
    """Whether it can predict values, not only classes."""
    counts_classes: ClassVar[bool] = False
    """Whether what it learns tells class from class, so that there is nothing to take for another one."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        _, replaced = last_linear(network)
        self.features, self.outputs = replaced.in_features, replaced.out_features

    @abstractmethod
    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        """From `features [T, S, F]` and `targets [T, S]` (classes) or `[T, S, outputs]` (values)."""

    @abstractmethod
    def answer(self, fitted: Fitted, features: Tensor) -> Tensor:
        """Logits or values `[T, Q, outputs]` for `features [T, Q, F]`."""

    def losses(self, fitted: Fitted, features: Tensor, targets: Tensor, loss: Loss) -> Tensor:
        """What training minimises for `features [T, Q, F]`, `[T]`; `loss` is the problem's own, of answers"""
        return loss(self.answer(fitted, features), targets)


def one_hot(targets: Tensor, classes: int, like: Tensor) -> Tensor:
    """Classes `[T, S]` as rows `[T, S, classes]` of the dtype of `like`; values stay as they are."""
    if targets.is_floating_point():
        return targets
    known = torch.arange(classes, device=targets.device)  # `F.one_hot` looks at values, so cannot be traced
    return (targets[..., None] == known).to(like.dtype)
