"""Relation networks (Sung, Yang, Zhang, Xiang, Torr and Hospedales, CVPR 2018, arXiv:1711.06025).

    c_k = mean of f(x) over the support images of class k           class features   [T, ways, F]
    r_k = g([c_k, f(x)])                                            relation scores  [T, Q, ways], in (0, 1)
    loss = mean over queries and classes of (r_k − 1[y = k])²

The network f and the relation module g, which compares a query with a class, are learned.

Departures from the authors' program:

- g has fully-connected layers on flat features, 2F → 64 → 64 → 8 → 1. Theirs has two convolution blocks of 64
  filters on pairs of feature maps, then fully-connected layers of 8 units and 1 unit, and their f pools only
  twice, so that maps are 19×19 at 84×84 pixels.
- g has no batch norm, so that a prediction does not depend on the other queries; theirs has.
- Features of a class are averaged; theirs are summed. The direction is the same, and a network trained with
  one shot can be used with five.
- Weights of g have He initialisation.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.head import Fitted, Head, one_hot
from pathaware.core.losses import Loss, mean_squared_error
from pathaware.core.settings import at_least
from pathaware.methods.method import Method
from pathaware.methods.prototypical import class_means


class Relation(Head):
    """Compares queries with classes by a learned module, `hidden` and `narrow` units wide.

    Predictions are scores in (0, 1), independent for each class: they do not sum to one.
    """

    def __init__(self, network: nn.Module, *, hidden: int = 64, narrow: int = 8) -> None:
        super().__init__(network)
        at_least(1, hidden=hidden, narrow=narrow)
        self.join = nn.Linear(2 * self.features, hidden)
        self.compare = nn.Sequential(
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, narrow),
            nn.ReLU(),
            nn.Linear(narrow, 1),
        )
        self.apply(_initialise)

    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        return (class_means(features, targets, self.outputs),)

    def predict(self, fitted: Fitted, features: Tensor) -> Tensor:
        (classes,) = fitted
        relations: Tensor = self.compare(self.joined(classes, features))
        return relations.squeeze(3).sigmoid()

    def joined(self, classes: Tensor, features: Tensor) -> Tensor:
        """The first layer's output for every pair, `[T, Q, ways, hidden]`.

        It is linear, so it is applied to both halves of the pairs separately, and no pair is materialised.
        """
        of_class, of_query = self.join.weight.split(self.features, dim=1)
        return F.linear(features, of_query, self.join.bias)[:, :, None] + F.linear(classes, of_class)[:, None]

    def losses(self, fitted: Fitted, features: Tensor, targets: Tensor, loss: Loss) -> Tensor:
        scores = self.predict(fitted, features)
        return mean_squared_error(scores, one_hot(targets, self.outputs, scores))


def _initialise(module: nn.Module) -> None:
    """He initialisation. PyTorch's default is a third of it: after four layers all pairs look alike, and the
    squared error of a sigmoid has almost no gradient."""
    if isinstance(module, nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(module.bias)


METHOD = Method(
    "relation",
    "learns to compare queries with classes",
    "Sung, Yang, Zhang, Xiang, Torr and Hospedales, CVPR 2018, arXiv:1711.06025",
    2018,
    Relation,
    order="none",
)
