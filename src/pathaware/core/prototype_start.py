"""A last layer that begins at the class means of the support set, for any gradient-based method.

    u = f(x) / ‖f(x)‖                        f: the network at θ₀ without its last layer          [T, S, F]
    m_k = mean of u over the images of class k                                                   [T, K, F]
    w_k = s m_k / (‖m_k‖ r),   b = 0         r: mean of ‖f(x)‖                                    [T, K, F]

The first prediction of a task is then that of the nearest class mean by the cosine, and inner steps continue
from there, as in Proto-MAML (Triantafillou et al., ICLR 2020, arXiv:1903.03096). Proto-MAML has w = 2 m,
b = −‖m‖² and features of any length. The scale s is learned with Φ. The rows of the network's own last layer
are not used, so the order of classes does not matter. The meta-gradient passes through the class means.

With a projection A [D, F] the cosine is that of A f(x), in the space of D dimensions:

    u = A f(x) / ‖A f(x)‖,   r: mean of ‖A f(x)‖,   w_k = s Aᵀ m_k / (‖m_k‖ r)

A is learned with Φ. It begins at the directions that separate the classes of the pretraining, and at those in
which its teacher sees differences (`project`). Other directions are noise, which matters most with one image
per class. The network stays as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.head import one_hot
from pathaware.core.last_layer import last_linear
from pathaware.core.parameters import Layout

if TYPE_CHECKING:
    from pathaware.core.rule import Context

SCALE = 10.0
"""Initial s: the largest difference that the cosine makes between two logits is 2 s."""

SMALLEST_LENGTH = 1e-12
"""Lower bound of r: images without any feature, such as empty ones, have equal probabilities, not NaN."""


def directions(classifier: Tensor) -> Tensor:
    """Orthonormal directions `[classes, F]` that the weights `[classes, F]` of a classifier span, the one in
    which they are largest first."""
    found: Tensor = torch.linalg.svd(F.normalize(classifier, dim=1), full_matrices=False).Vh
    return found


class PrototypeStart(nn.Module):
    """Puts the class means of each task's support set in place of the last layer.

    `dimensions` is the largest D; 0 stands for class means of all features.
    """

    def __init__(self, model: nn.Module, layout: Layout, dimensions: int = 0) -> None:
        super().__init__()
        name, layer = last_linear(model)
        self.weight, self.bias = f"{name}.weight", f"{name}.bias"
        self.classes = layer.out_features
        self.layout = layout
        if not {self.weight, self.bias} <= {entry.name for entry in layout.entries}:
            raise UsageError("head: prototypes need a last layer that adapts, and the method adapts none")
        self.log_scale = nn.Parameter(torch.tensor(SCALE).log())
        self.projection: nn.Parameter | None = None
        if dimensions:
            shape = min(dimensions, layer.in_features), layer.in_features
            self.projection = nn.Parameter(nn.init.orthogonal_(torch.empty(shape)))

    @torch.no_grad()
    def project(self, rows: Tensor) -> None:
        """Begin at the first D of these directions `[N, F]`.

        If there are fewer, the other ones stay as they are, at right angles to these.
        """
        if self.projection is None:
            return
        wanted = len(self.projection)
        chosen = rows[:wanted].to(self.projection)
        others = torch.linalg.qr(torch.cat([chosen, self.projection]).T).Q.T[len(chosen) : wanted]
        self.projection.copy_(torch.cat([chosen, others]))

    def forward(self, initial: Tensor, context: Context) -> Tensor:
        """`initial [T, D]` with another last layer."""
        features = context.learner.execution.features(initial, context.support_x)
        if self.projection is not None:
            features = F.linear(features, self.projection)
        labels = one_hot(context.support_y, self.classes, features)  # [T, S, K]
        labels = labels if context.weights is None else labels * context.weights[..., None]
        means = F.normalize(labels.mT @ F.normalize(features, dim=-1), dim=-1)
        lengths = features.norm(dim=-1).mean(1).clamp_min(SMALLEST_LENGTH)
        scale = self.log_scale.exp() / lengths
        means = means if self.projection is None else means @ self.projection
        values = dict(self.layout.views(initial))
        values[self.weight] = scale[:, None, None] * means
        values[self.bias] = torch.zeros_like(values[self.bias])
        return torch.cat([values[entry.name].flatten(1) for entry in self.layout.entries], dim=1)
