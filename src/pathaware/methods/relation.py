"""Relation networks (Sung, Yang, Zhang, Xiang, Torr and Hospedales, CVPR 2018, arXiv:1711.06025).

    c_k = mean of f(x) over the support images of class k           class maps       [T, ways, C, h, w]
    r_k = g([c_k, f(x)])                                            relation scores  [T, Q, ways], in (0, 1)
    loss = mean over queries and classes of (r_k − 1[y = k])²

The network f and the relation module g, which compares a query with a class, are learned. f ends in feature
maps: Conv-4 with two poolings instead of four, and no padding before them, which gives 19×19 maps of 84×84
images and 5×5 of 28×28, as in the authors' code. g has two blocks of convolution, batch norm, ReLU and
max-pool on the joined maps of a pair, then two linear layers.

Departures from the authors' code:

- Maps of a class are averaged over its images; theirs are summed. So a network that was trained with one shot
  can be used with five.
- Weights of linear layers have He initialisation. Theirs are normal with a deviation of 0.01, with biases of
  one, which takes thousands of episodes to overcome.
- Batch norm of g uses the statistics of one task's pairs; in theirs a batch is one task. For inductive
  predictions they are those of the pairs of support images and classes.
- g pads maps below 10×10 in its convolutions but not larger ones, as theirs does for Omniglot (5×5) and
  miniImageNet (19×19). It is as wide as f, which has 64 filters in theirs.
- Networks that are not a plain chain of four or more blocks, such as ResNet-12, are used as they are: g then
  compares the maps, or the vector, before their last linear layer.
"""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.batch_norm import TaskStatistics
from pathaware.core.head import Fitted, Head, one_hot
from pathaware.core.losses import Loss, mean_squared_error
from pathaware.core.settings import at_least
from pathaware.methods.method import Method
from pathaware.methods.prototypical import class_means

POOLINGS = 2
UNPADDED = 10
"""The smallest map that g's convolutions do not pad: two of them with their poolings leave 1×1."""


def with_maps(model: nn.Module) -> nn.Module:
    """Keep the first two poolings of a chain of at least four blocks, and unpad the convolutions before them.

    Four poolings mean images of at least 16×16 pixels, of which maps of 2×2 remain.
    """
    children = list(model.named_children())
    pools = [name for name, child in children if isinstance(child, nn.MaxPool2d)]
    if not isinstance(model, nn.Sequential) or len(pools) < 2 * POOLINGS:
        return model
    changed = copy.deepcopy(model)
    pooled = 0
    for name, child in list(changed.named_children()):
        if isinstance(child, nn.MaxPool2d):
            pooled += 1
            if pooled > POOLINGS:
                setattr(changed, name, nn.Identity())
        elif isinstance(child, nn.Conv2d) and pooled < POOLINGS:
            child.padding = (0, 0)
    return changed


class Relation(Head):
    """Compares queries with classes by a learned module whose first linear layer has `hidden` units.

    Predictions are scores in (0, 1), independent for each class: they do not sum to one.
    """

    def __init__(self, network: nn.Module, *, hidden: int = 8) -> None:
        super().__init__(network)
        at_least(1, hidden=hidden)
        self.channels = c = map_channels(network, self.features)
        self.join = nn.Conv2d(2 * c, c, 3)
        self.join_norm = nn.BatchNorm2d(c, track_running_stats=False)
        self.compare = nn.Conv2d(c, c, 3)
        self.compare_norm = nn.BatchNorm2d(c, track_running_stats=False)
        # Four poolings leave `side`, and g's two poolings after f's two leave about half of it.
        side = math.isqrt(self.features // c)
        self.grid = max(1, (side + 1) // 2)
        self.score = nn.Sequential(nn.Linear(c * self.grid**2, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        return (class_means(features, targets, self.outputs),)

    def predict(self, fitted: Fitted, features: Tensor) -> Tensor:
        return self.relations(fitted, features)

    def predict_inductive(self, fitted: Fitted, features: Tensor, support: Tensor) -> Tensor:
        count = support.shape[1]
        return self.relations(fitted, torch.cat([support, features], 1), count)[:, count:]

    def relations(self, fitted: Fitted, features: Tensor, count: int | None = None) -> Tensor:
        """Scores `[T, N, ways]` for `features [T, N, F]`; with `count`, statistics are of the first examples.

        The first convolution is linear, so it is applied to both halves of the pairs separately.
        """
        (classes,) = fitted
        ways, shape = classes.shape[1], (self.channels, *self.map_size(features))
        padding = 0 if shape[1] >= UNPADDED else 1
        of_class, of_query = self.join.weight.split(self.channels, dim=1)
        a = F.conv2d(classes.reshape(-1, *shape), of_class, padding=padding).unflatten(0, classes.shape[:2])
        b = F.conv2d(features.reshape(-1, *shape), of_query, self.join.bias, padding=padding)
        joined = (a[:, None] + b.unflatten(0, features.shape[:2])[:, :, None]).flatten(0, 2)
        # With one task the modules' own statistics are the task's, and can be frozen for inference.
        single = len(features) == 1 and count is None
        pairs = None if count is None else count * ways
        with nullcontext() if single else TaskStatistics(len(features), pairs):
            maps = pool(self.join_norm(joined).relu())
            compared = F.conv2d(maps, self.compare.weight, self.compare.bias, padding=padding)
            maps = pool(self.compare_norm(compared).relu())
        scores: Tensor = self.score(F.adaptive_max_pool2d(maps, self.grid).flatten(1)).sigmoid()
        return scores.view(*features.shape[:2], ways)

    def map_size(self, features: Tensor) -> tuple[int, int]:
        side = math.isqrt(features.shape[2] // self.channels)
        return side, side

    def losses(self, fitted: Fitted, features: Tensor, targets: Tensor, loss: Loss) -> Tensor:
        scores = self.predict(fitted, features)
        return mean_squared_error(scores, one_hot(targets, self.outputs, scores))


def map_channels(network: nn.Module, features: int) -> int:
    """Channels of the square maps that reach the last linear layer; all `features` if they are no maps."""
    layers = [m for m in network.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    before = layers[-2] if len(layers) > 1 else None
    if not isinstance(before, nn.Conv2d) or features % before.out_channels:
        return features
    area = features // before.out_channels
    return before.out_channels if math.isqrt(area) ** 2 == area else features


def pool(maps: Tensor) -> Tensor:
    """Max-pool 2×2, unless a map is a single pixel."""
    return F.max_pool2d(maps, 2) if maps.shape[-1] > 1 else maps


METHOD = Method(
    "relation",
    "learns to compare queries with classes",
    "Sung, Yang, Zhang, Xiang, Torr and Hospedales, CVPR 2018, arXiv:1711.06025",
    2018,
    Relation,
    order="none",
    network=with_maps,
    version=2,
)
