"""Relation networks (Sung, Yang, Zhang, Xiang, Torr and Hospedales, CVPR 2018, arXiv:1711.06025).

    c_k = mean of f(x) over the support images of class k           class features   [T, ways, F]
    r_k = g([c_k, f(x)])                                            relation scores  [T, Q, ways], in (0, 1)
    loss = mean over queries and classes of (r_k − 1[y = k])²

The network f and the comparison g are learned. In the paper g is two convolutions of 64 filters over both
feature maps, with batch norm, and two fully-connected layers, of 8 units and of 1. Here every layer is fully
connected and reads flat features, because maps are 1×1 or 2×2 after four poolings: 2F → 64 → 64 → 8 → 1; and
there is no batch norm, so that the answer to one query does not depend on others. The paper adds up the
features of a class; a mean has the same direction, and what was trained with one shot can be used with five.
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
    """Learns how alike a query and a class are, instead of measuring a distance.

    StepPredictions are scores in (0, 1), one for each class by itself: they do not add up to one.
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
        self.apply(_start)

    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        return (class_means(features, targets, self.outputs),)

    def predict(self, fitted: Fitted, features: Tensor) -> Tensor:
        (classes,) = fitted
        relations: Tensor = self.compare(self.joined(classes, features))
        return relations.squeeze(3).sigmoid()

    def joined(self, classes: Tensor, features: Tensor) -> Tensor:
        """The first layer at every pair `[T, Q, ways, hidden]`. It is linear, so each half of a pair goes
        through it once, and no pair need be laid out."""
        of_class, of_query = self.join.weight.split(self.features, dim=1)
        return F.linear(features, of_query, self.join.bias)[:, :, None] + F.linear(classes, of_class)[:, None]

    def losses(self, fitted: Fitted, features: Tensor, targets: Tensor, loss: Loss) -> Tensor:
        answers = self.predict(fitted, features)
        return mean_squared_error(answers, one_hot(targets, self.outputs, answers))


def _start(module: nn.Module) -> None:
    """As large as ReLUs need (He et al. 2015): with PyTorch's own start, a third of it, all pairs look alike
    after four layers, and squared errors of a sigmoid hardly move."""
    if isinstance(module, nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(module.bias)


METHOD = Method(
    "relation",
    "learns to tell how alike a query and a class are",
    "Sung, Yang, Zhang, Xiang, Torr and Hospedales, CVPR 2018, arXiv:1711.06025",
    2018,
    Relation,
    order="none",
)
