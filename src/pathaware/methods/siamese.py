"""Siamese networks (Koch, Zemel and Salakhutdinov, ICML Deep Learning Workshop 2015).

    p(x, x') = σ(Σⱼ αⱼ |fⱼ(x) − fⱼ(x')| + β)       that two images share a class      pairs  [T, Q, S]
    loss = ½ mean of −log p over pairs of one class + ½ mean of −log(1 − p) over pairs of two

A query gets the class of the support image it matches best. The network f, α and β are learned.

Departures from the authors' code (which we did not find; the paper is followed):

- Training uses all pairs of a query and a support image of an episode. Theirs draws as many pairs from one
  class as from two; here each kind has half of the weight.
- The paper's formula has no β, without which p is exactly ½ for equal images.
- α is initialised to −1/√F: negative, because distance is evidence against a pair. β is initialised to
  0.6 √F, see `CLOSE`, so that near pairs have p > ½ from the beginning. Theirs is random.
- The authors train on pairs for verification, with a network of their own, layer-wise learning rates and
  affine distortions. Here the network, augmentation and optimiser are those of all other methods.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.head import Fitted, Head, one_hot
from pathaware.core.losses import Loss
from pathaware.methods.method import Method

CLOSE = 0.6
"""The mean of |fⱼ(x) − fⱼ(x')| at which p is initialised to ½. A feature of Conv-4 is the largest of four
batch-normalised numbers and zero; if these were independent and normal, features of unrelated images would
differ by 0.76 on average, and equal images by zero."""


class Siamese(Head):
    """Predictions are logits of p for the best match in each class, independent for each class."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)
        self.alpha = nn.Parameter(torch.full((self.features,), -1 / math.sqrt(self.features)))
        self.beta = nn.Parameter(torch.tensor(CLOSE * math.sqrt(self.features)))

    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        return features, one_hot(targets, self.outputs, features)

    def predict(self, fitted: Fitted, features: Tensor) -> Tensor:
        support, classes = fitted
        other_classes = classes[:, None] == 0
        logits = self.pairs(features, support).unsqueeze(3)
        return logits.masked_fill(other_classes, -math.inf).amax(2)

    def pairs(self, a: Tensor, b: Tensor) -> Tensor:
        """Logits of p for every pair of `a [T, N, F]` and `b [T, M, F]`: `[T, N, M]`."""
        return (a[:, :, None] - b[:, None]).abs() @ self.alpha + self.beta

    def losses(self, fitted: Fitted, features: Tensor, targets: Tensor, loss: Loss) -> Tensor:
        support, classes = fitted
        same_class = one_hot(targets, self.outputs, features) @ classes.transpose(1, 2)
        logits = self.pairs(features, support)
        losses = F.binary_cross_entropy_with_logits(logits, same_class, reduction="none")
        return (masked_mean(same_class, losses) + masked_mean(1 - same_class, losses)) / 2


def masked_mean(mask: Tensor, values: Tensor) -> Tensor:
    """The mean `[T]` of the values `[T, N, M]` where `mask` is 1; 0 where it never is."""
    return (mask * values).sum((1, 2)) / mask.sum((1, 2)).clamp(min=1)


METHOD = Method(
    "siamese",
    "learns whether two images share a class and predicts the best match",
    "Koch, Zemel and Salakhutdinov, ICML Deep Learning Workshop 2015",
    2015,
    Siamese,
    order="none",
    version=2,
)
