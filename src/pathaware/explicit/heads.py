"""Losses written out: the loss of each task, its slope in the outputs, and how that slope turns."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from pathaware.explicit.layer import Kept
from pathaware.losses import Loss, cross_entropy, mean_squared_error
from pathaware.tracing import tracing


class Head(ABC):
    """The end of a program: outputs `[T, N, F]` and targets to losses `[T]`."""

    @abstractmethod
    def fits(self, targets: Tensor) -> bool:
        """Whether these are targets it can judge; what it cannot is left to autograd."""

    @abstractmethod
    def slope(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Kept]:
        """Losses `[T]`, their derivative in the outputs, and what `curve` needs."""

    @abstractmethod
    def curve(self, kept: Kept, d: Tensor) -> Tensor:
        """The derivative of that slope along a direction d of the outputs."""


class MeanSquaredError(Head):
    def fits(self, targets: Tensor) -> bool:
        return targets.ndim == 3

    def slope(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Kept]:
        error = outputs - targets
        slope = error * _share(error)
        return torch.linalg.vecdot(error.flatten(1), slope.flatten(1)) / 2, slope, []

    def curve(self, kept: Kept, d: Tensor) -> Tensor:
        return d * _share(d)


def _share(outputs: Tensor) -> float:
    return 2 / (outputs.shape[1] * outputs.shape[2])


class CrossEntropy(Head):
    def fits(self, targets: Tensor) -> bool:
        labels = targets.ndim == 2 and targets.dtype == torch.long
        return labels and (tracing() or bool(targets.min() >= 0))  # below zero: to be ignored

    def slope(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Kept]:
        share = 1 / targets.shape[1]
        likelihood = outputs.softmax(-1)
        slope = likelihood * share
        slope.scatter_add_(-1, targets.unsqueeze(-1), slope.new_full((*targets.shape, 1), -share))
        return cross_entropy(outputs, targets), slope, [likelihood]

    def curve(self, kept: Kept, d: Tensor) -> Tensor:
        (likelihood,) = kept
        moved = likelihood * d
        return torch.addcmul(moved, likelihood, moved.sum(-1, keepdim=True), value=-1) / d.shape[1]


HEADS: dict[Loss, Head] = {mean_squared_error: MeanSquaredError(), cross_entropy: CrossEntropy()}
"""By the loss of each task that autograd would differentiate."""
