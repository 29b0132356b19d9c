"""Statistics of the features of training classes, for heads on a frozen network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.head import Head
from pathaware.core.settings import at_least

SMALLEST_SPREAD = 0.1
"""Added to the variances by which distances are measured, whose mean is one."""


class TrainingStatistics(Head):
    """A head that observes the covariance Σ of features within training classes, all of length one.

    With `adaptive` it also observes how far training images are from their mean, and with `anchors` the means
    of that many training classes. Without training features Σ is I, and all distances count as typical.
    """

    axes: Tensor
    """Eigenvectors of Σ, in columns."""
    spread: Tensor
    """Eigenvalues of Σ, divided by their mean."""
    middle: Tensor
    """The mean feature, along the axes."""
    typical: Tensor
    """The mean of training images' distances, and one over their standard deviation."""
    anchor_means: Tensor

    def __init__(self, network: nn.Module, *, adaptive: bool, anchors: int) -> None:
        super().__init__(network)
        at_least(0, anchors=anchors)
        self.adaptive, self.anchors = adaptive, anchors
        self.register_buffer("axes", torch.eye(self.features))
        self.register_buffer("spread", torch.ones(self.features))
        if adaptive:
            self.register_buffer("middle", torch.zeros(self.features))
            self.register_buffer("typical", torch.zeros(2))
        if anchors:
            self.register_buffer("anchor_means", torch.zeros(anchors, self.features))

    def observe(self, features: Tensor, labels: Tensor) -> None:
        """Estimate all statistics from features `[N, F]` of the training classes."""
        unit = F.normalize(features.double(), dim=-1)
        classes = labels.unique()
        if self.anchors > len(classes):
            raise UsageError(
                f"anchors: {self.anchors} is not allowed; at most {len(classes)}, the training classes"
            )
        means = torch.stack([unit[labels == k].mean(0) for k in classes])
        centred = torch.cat([unit[labels == k] - mean for k, mean in zip(classes, means, strict=True)])
        spread, axes = torch.linalg.eigh(centred.mT @ centred / len(centred))
        self.axes.copy_(axes)
        self.spread.copy_(spread.clamp(min=0) / spread.mean())
        if self.adaptive:
            self.middle.copy_(unit.mean(0) @ axes)
            distances = self.distances(unit.to(self.axes))
            self.typical.copy_(torch.stack([distances.mean(), 1 / distances.std()]))
        if self.anchors:
            self.anchor_means.copy_(means[torch.linspace(0, len(classes) - 1, self.anchors).round().long()])

    def distances(self, features: Tensor) -> Tensor:
        """Squared Mahalanobis distances of features `[…, F]` from the mean of training features."""
        from_mean = F.normalize(features, dim=-1) @ self.axes - self.middle
        return (from_mean.square() / (self.spread + SMALLEST_SPREAD)).mean(-1)
