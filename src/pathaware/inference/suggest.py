"""The unlabelled images whose labels would help most: what to label next.

Images are chosen one after another. Each is the one that brings the unlabelled images closest to an image
with a label: it maximises Σₖ maxᵢ sim(xₖ, xᵢ), where k runs over all unlabelled images, i over the labelled
and the chosen ones, and sim is the cosine of the features before the last layer of the adapted network. So it
chooses typical images of groups that have no label yet.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathaware.core.settings import at_least
from pathaware.inference.open_set import features_and_logits
from pathaware.inference.trained_model import BATCH, AdaptedClassifier, SupportSet, TrainedModel


def suggest(model: TrainedModel, support: SupportSet, pixels: Tensor, count: int = 5) -> list[int]:
    """The indices of `count` of the unlabelled images `[N, C, size, size]` to label next, the best first.

    >>> from pathaware.data import open_store
    >>> glyphs = open_store("glyphs").images
    >>> support = SupportSet(("one", "two"), glyphs[[0, 20]], torch.tensor([0, 1]))
    >>> unlabelled = glyphs[[1, 21, 40, 41, 42]]  # the last three are of a third class
    >>> suggest(TrainedModel.open("glyphs", "cpu"), support, unlabelled, count=1)[0] >= 2
    True
    """
    at_least(1, count=count)
    adapted = model.adapt(support.pixels, support.labels, len(support.classes))
    return coverage(unit_features(adapted, support.pixels), unit_features(adapted, pixels), count)


def unit_features(adapted: AdaptedClassifier, pixels: Tensor) -> Tensor:
    """Features of unit length `[N, F]` of pixels `[N, C, size, size]`."""
    parts = [
        features_and_logits(adapted.network, adapted.inputs(part))[0].double().cpu()
        for part in pixels.split(BATCH)
    ]
    return torch.cat(parts) if parts else torch.zeros(0, 1, dtype=torch.float64)


def coverage(labelled: Tensor, features: Tensor, count: int, weights: Tensor | None = None) -> list[int]:
    """Choose `count` of `features [N, F]` by the rule of this module, given those of labelled images."""
    if not len(features):
        return []
    covered = (features @ labelled.T).amax(1)
    similar = features @ features.T
    chosen: list[int] = []
    for _ in range(min(count, len(features))):
        gain = (similar - covered[:, None]).clamp(min=0)
        gain = gain.sum(0) if weights is None else weights @ gain
        if chosen:
            gain[chosen] = -1.0
        best = int(gain.argmax())
        chosen.append(best)
        covered = torch.maximum(covered, similar[:, best])
    return chosen
