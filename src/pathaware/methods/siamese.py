"""Siamese networks (Koch, Zemel and Salakhutdinov, ICML Deep Learning Workshop 2015).

    p(x, x') = σ(Σⱼ αⱼ |fⱼ(x) − fⱼ(x')| + β)       that two images share a class      pairs  [T, Q, S]
    loss = ½ mean of −log p over pairs of one class + ½ mean of −log(1 − p) over pairs of two

A query has the class of the support image it matches best. The network f, α and β are learned, from all
pairs of a query and a support image; each kind of pair counts half, as in the paper, which draws as many of
one as of the other. The paper's formula has no β, but then p is ½ for equal images, however sure one can be
of them. α starts at −1/√F: negative, because distance speaks against a pair.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.head import Fitted, Head, one_hot
from pathaware.core.losses import Loss
from pathaware.methods.method import Method


class Siamese(Head):
    """StepPredictions are logits of p for the best match in each class, each by itself."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)
        self.alpha = nn.Parameter(torch.full((self.features,), -1 / math.sqrt(self.features)))
        self.beta = nn.Parameter(torch.zeros(()))

    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        return features, one_hot(targets, self.outputs, features)

    def predict(self, fitted: Fitted, features: Tensor) -> Tensor:
        support, classes = fitted
        elsewhere = classes[:, None] == 0
        logits = self.pairs(features, support).unsqueeze(3)
        return logits.masked_fill(elsewhere, -math.inf).amax(2)

    def pairs(self, a: Tensor, b: Tensor) -> Tensor:
        """Logits of p for every pair of `a [T, N, F]` and `b [T, M, F]`: `[T, N, M]`."""
        return (a[:, :, None] - b[:, None]).abs() @ self.alpha + self.beta

    def losses(self, fitted: Fitted, features: Tensor, targets: Tensor, loss: Loss) -> Tensor:
        support, classes = fitted
        alike = one_hot(targets, self.outputs, features) @ classes.transpose(1, 2)
        logits = self.pairs(features, support)
        costs = F.binary_cross_entropy_with_logits(logits, alike, reduction="none")
        return (mean_over(alike, costs) + mean_over(1 - alike, costs)) / 2


def mean_over(chosen: Tensor, values: Tensor) -> Tensor:
    """Of those values `[T, N, M]` where `chosen` is 1: `[T]`; 0 where there are none."""
    return (chosen * values).sum((1, 2)) / chosen.sum((1, 2)).clamp(min=1)


METHOD = Method(
    "siamese",
    "learns whether two images share a class and answers with the best match",
    "Koch, Zemel and Salakhutdinov, ICML Deep Learning Workshop 2015",
    2015,
    Siamese,
    order="none",
)
