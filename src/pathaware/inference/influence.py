"""Why a prediction was made: the influence of every support image on it, and labels that may be wrong.

Let support image i have weight wᵢ in the loss that inner steps descend, Σᵢ wᵢ ℓᵢ(θ) / S with wᵢ = 1. The
influence of image i on a prediction is the derivative ∂ log p(class | image) / ∂wᵢ. It is exact: one reverse
pass through the whole path θ₀ → … → θₙ. Batch-norm statistics are those of all support images, whatever their
weights. Rules that hold parts of their steps constant are refused (see `Rule.allows`).

A head that is fitted to features, by class means or ridge regression, has weights too: wᵢ is that of image i
in the mean of its class or in the loss that is minimised. The influence is the same derivative, through the
fit. In a class with one image the mean does not depend on its weight. A last layer that begins at class means
(`core.prototype_start`) has weights in both: in the means, and in the loss of the inner steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pathaware.core.errors import UsageError
from pathaware.core.few_shot import FewShotLearner
from pathaware.inference.predictions import Reason
from pathaware.inference.trained_model import SupportSet, TrainedModel

ODDS = 20.0
"""How many times as probable as its own label another one is if a label is called suspicious.

Chosen on validation classes (the study `wrong_labels`): with 1, which marks every wrong prediction, most
marks are the model's own mistakes.
"""
QUERIES = 32
"""Images whose predictions are explained by one path; their activations are in memory together."""


def influence(
    learner: FewShotLearner, support_x: Tensor, support_y: Tensor, query_x: Tensor, classes: Tensor
) -> Tensor:
    """The influence `[Q, S]` of every support example on the log-probability of `classes [Q]`.

    Shapes: `support_x [S, …]`, `support_y [S]`, `query_x [Q, …]`. There is one path for all queries, and one
    reverse pass per query.
    """
    require_weights(learner)
    weights = torch.ones(1, len(support_y), dtype=support_x.dtype, device=support_x.device).requires_grad_()
    with torch.enable_grad():
        outputs = learner.adapted(support_x[None], support_y[None], weights=weights).outputs(query_x[None])[0]
        chosen = outputs.log_softmax(-1).gather(1, classes[:, None])[:, 0]
    rows = [torch.autograd.grad(value, weights, retain_graph=True)[0] for value in chosen]
    return torch.cat(rows) if rows else weights.detach()[:0]


def require_weights(learner: FewShotLearner) -> None:
    """Raise unless the support examples of a learner can have weights."""
    if "weights" in learner.allows:
        return
    rule = getattr(learner, "rule", None)
    lacks = "neither has an inner loop nor fits a head, through which influence is differentiated"
    holds = "holds parts of its inner steps constant, through which influence cannot be differentiated"
    raise UsageError(
        f"the method {lacks}" if rule is None else f"the method ({type(rule).__name__}) {holds}", field="why"
    )


def explain(model: TrainedModel, support: SupportSet, pixels: Tensor, classes: Tensor) -> Tensor:
    """The influence `[N, S]` of a support set on predictions `classes [N]` for pixels `[N, C, size, size]`.

    A positive value means that more weight on the support image raises the log-probability of the prediction.

    >>> from pathaware.data import open_store
    >>> glyphs = open_store("glyphs").images
    >>> support = SupportSet(("one", "two"), glyphs[[0, 1, 20, 21]], torch.tensor([0, 0, 1, 1]))
    >>> model = TrainedModel.open("glyphs", "cpu")
    >>> explain(model, support, glyphs[[2]], torch.tensor([0])).shape
    torch.Size([1, 4])
    """
    if model.views != "single":
        raise UsageError("only predictions from single views can be explained", field="why")
    ways = len(support.classes)
    learner, chosen = model.learner(ways), model.arranged(support.pixels, support.labels, ways)
    x, y = model.support_inputs(support.pixels)[chosen], support.labels.to(model.device)[chosen]
    parts = [
        influence(learner, x, y, model.query_inputs(some), own.to(model.device)).cpu()
        for some, own in zip(pixels.split(QUERIES), classes.split(QUERIES), strict=True)
    ]
    values = torch.cat(parts) if parts else torch.zeros(0, len(chosen))
    # small classes are repeated; the influence of the copies of each image is added up
    return values.new_zeros(len(values), len(support.labels)).index_add(1, chosen, values)


def reasons(
    model: TrainedModel, support: SupportSet, pixels: Tensor, classes: Tensor, count: int = 2
) -> list[Reason]:
    """The support images that count most for and against each of the predictions `classes [N]`.

    At most `count` each, the strongest first.
    """
    found = []
    for row in explain(model, support, pixels, classes).tolist():
        ranked = sorted(enumerate(row), key=lambda pair: -pair[1])
        positive = [pair for pair in ranked if pair[1] > 0][:count]
        found.append(Reason(positive, [pair for pair in reversed(ranked) if pair[1] < 0][:count]))
    return found


class SuspiciousLabel(NamedTuple):
    """A support image whose label may be wrong: its index, its score, and the index of the likelier class.

    The score is the log-probability of its label minus that of the most probable other one, by a model that
    has learned all other images.
    """

    image: int
    score: float
    other: int


def suspicious_labels(
    model: TrainedModel, support: SupportSet, odds: float = ODDS, *, images: Sequence[int] | None = None
) -> list[SuspiciousLabel]:
    """Support images whose labels may be wrong, the most suspicious first.

    The model learns from all other images and predicts this one. Its label is suspicious if another one is
    `odds` times as probable; with 0, all images of classes with at least two are returned. Methods without
    an inner loop can do this too. With `images`, only these are considered.
    """
    classes = len(support.classes)
    learner = model.learner(classes)
    counts = support.labels.bincount(minlength=classes)
    found = []
    for i, label in enumerate(support.labels.tolist()):
        if counts[label] < 2 or (images is not None and i not in images):
            continue
        others = torch.arange(len(support.labels)) != i
        pixels, labels = support.pixels[others], support.labels[others]
        chosen = model.arranged(pixels, labels, classes)
        with torch.no_grad():
            tensors = (
                model.support_inputs(pixels)[chosen],
                labels[chosen].to(model.device),
                model.query_inputs(support.pixels[i : i + 1]),
            )
            examples = (tensor[None] for tensor in tensors)
            logits = learner.predictions_per_step(*examples, queries="alone").outputs[-1][0, 0].double()
        logits /= model.temperature(classes, len(labels) / classes)
        own = logits[label].item()
        logits[label] = -torch.inf
        found.append(SuspiciousLabel(i, own - logits.max().item(), int(logits.argmax())))
    ranked = sorted(found, key=lambda each: each.score)
    return [each for each in ranked if not odds or each.score <= -math.log(odds)]


def times(log_odds: float) -> str:
    """How many times as probable, for people: `20 times`, beyond a thousand `over 1,000 times`.

    >>> times(3.1), times(50.0)
    ('22 times', 'over 1,000 times')
    """
    return f"{math.exp(log_odds):.0f} times" if log_odds < math.log(1000) else "over 1,000 times"
