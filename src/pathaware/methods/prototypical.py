"""Prototypical networks (Snell, Swersky and Zemel, NeurIPS 2017, arXiv:1703.05175).

    c_k = mean of f(x) over the support images of class k          prototypes  [T, ways, F]
    p(y = k | x) ∝ exp(−‖f(x) − c_k‖²)                             logits      [T, Q, ways]

A query gets the class whose prototype is nearest. Only the network f is learned.

Departures from the authors' code:

- Distances are divided by F. Training can undo that, and initially it keeps the softmax from saturating in
  wide networks.
- Training tasks have as many classes as evaluation tasks. Theirs have more, 60 for Omniglot by default.
- Batch norm uses the statistics of the support set and of the queries separately; theirs embeds both at once,
  and uses running averages in evaluation.
"""

from __future__ import annotations

from torch import Tensor

from pathaware.core.head import Fitted, Head, one_hot
from pathaware.core.rule import Allowed
from pathaware.methods.method import Method


class Prototypical(Head):
    """Nearest class mean by squared Euclidean distance."""

    allows: frozenset[Allowed] = frozenset({"more classes", "weights"})

    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        return (class_means(features, targets, self.outputs),)

    def fit_weighted(self, features: Tensor, targets: Tensor, weights: Tensor) -> Fitted:
        members = one_hot(targets, self.outputs, features) * weights.unsqueeze(2)
        return (class_means(features, members, self.outputs),)

    def predict(self, fitted: Fitted, features: Tensor) -> Tensor:
        (prototypes,) = fitted
        return -squared_distances(features, prototypes) / self.features


def class_means(features: Tensor, targets: Tensor, classes: int) -> Tensor:
    """The mean feature of each class: `[T, ways, F]`."""
    members = one_hot(targets, classes, features).transpose(1, 2)
    return members @ features / members.sum(2, keepdim=True)


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """‖aᵢ − bⱼ‖² for `a [T, N, F]` and `b [T, M, F]`: `[T, N, M]`, as a matrix product."""
    return a.square().sum(2, keepdim=True) - 2 * a @ b.transpose(1, 2) + b.square().sum(2).unsqueeze(1)


METHOD = Method(
    "prototypical",
    "predicts the class whose mean feature is nearest",
    "Snell, Swersky and Zemel, NeurIPS 2017, arXiv:1703.05175",
    2017,
    Prototypical,
    order="none",
)
