"""Open-set recognition: how far an image is from all classes, and how well that detects foreign images.

The score of an image is its distance to the nearest class, in the features that the adapted network computes
before its last layer, each scaled to unit length:

    min over classes k of  ‖f − mₖ‖² / (1 + κ sₖ)         mₖ: mean of the class's support features

sₖ is the spread of the class: the mean squared distance of its support features to the mean of the others. So
images of varied classes may lie farther out, and all classes are refused about equally often. κ, and the
threshold, come from validation classes (see `pathaware.inference.calibration`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.batch_norm import freeze_batch_norm
from pathaware.core.errors import UsageError
from pathaware.core.head import FittedNetwork
from pathaware.core.last_layer import last_linear
from pathaware.core.seeding import generator
from pathaware.core.settings import at_least
from pathaware.data.episodes import ImageEpisodes
from pathaware.data.store import ImageStore
from pathaware.inference.trained_model import BATCH, AdaptedClassifier, SupportSet, TrainedModel
from pathaware.training.evaluation import interval_over_tasks, tasks_for

SCORES = ("distance", "nearest mean", "energy", "maximum probability")
"""Scores of `OpenSetEvaluation`: ours first, then the baselines. Larger means more foreign."""


@torch.no_grad()
def features_and_logits(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Features of unit length `[N, F]`, the input of the last linear layer, and logits `[N, classes]`."""
    if isinstance(network, FittedNetwork):  # it has a head instead of a last layer
        return F.normalize(network.model(x).flatten(1), dim=1), network(x)
    seen: list[Tensor] = []
    _, layer = last_linear(network)
    handle = layer.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        logits = network(x)
    finally:
        handle.remove()
    features = seen[-1].flatten(1)
    views = len(features) // max(1, len(x))
    if views > 1:
        features = features.unflatten(0, (views, len(x))).mean(0)
    return F.normalize(features, dim=1), logits


@dataclass(frozen=True)
class ClassMeans:
    """The mean features of each class `[classes, F]` and their spread `[classes]`."""

    means: Tensor
    spreads: Tensor

    @classmethod
    def of(cls, features: Tensor, labels: Tensor) -> ClassMeans:
        """Those of support features `[S, F]` with labels `[S]`; every class has some.

        The spread of a class with one example is the mean of the others, or zero if no class has two.
        """
        members = F.one_hot(labels).to(features)
        counts = members.sum(0)
        means = members.T @ features / counts[:, None]
        # the distance to the mean of the others is n / (n − 1) times that to the mean of all n
        apart = (features - means[labels]).square().sum(1)
        larger = counts / (counts - 1).clamp(min=1)
        spreads = members.T @ apart / counts * larger.square()
        several = counts > 1
        spreads[~several] = spreads[several].mean() if several.any() else 0.0
        return cls(means, spreads)

    def distances(self, features: Tensor) -> Tensor:
        """The squared distances `[N, classes]` of features `[N, F]` to the class means."""
        return torch.cdist(features, self.means).square()


def nearest(distances: Tensor, spreads: Tensor, weight: float) -> Tensor:
    """The score `[…, N]` of squared distances `[…, N, classes]`, κ being the `weight` of spreads."""
    return (distances / (1 + weight * spreads.unsqueeze(-2))).amin(-1)


@dataclass(frozen=True)
class OpenTask:
    """Logits, labels, and squared distances to the class means of the known queries of a task.

    Then the spreads of its classes, and logits and distances of foreign queries.
    """

    logits: Tensor
    labels: Tensor
    distances: Tensor
    spreads: Tensor
    foreign_logits: Tensor
    foreign_distances: Tensor


def open_tasks(
    model: TrainedModel,
    *,
    split: str,
    tasks: int,
    seed: int,
    ways: int,
    shots: int,
    queries: int,
    foreign: bool = True,
    store: ImageStore | None = None,
) -> Iterator[OpenTask]:
    """Adapt to tasks of a split; their queries are of the learned classes and of as many foreign classes.

    Every query is predicted alone, as in use. Without `foreign` all queries are of the learned classes. The
    images are those of the run's data set, or of another `store`.
    """
    at_least(1, tasks=tasks)
    problem: Any = model.config.problem
    drawn = 2 * ways if foreign else ways
    problem = dataclasses.replace(problem, ways=drawn, shots=shots, queries=queries, varying=False)
    learner = model.learner(ways)
    images = (
        problem.tasks(split, model.device, torch.float32)
        if store is None
        else ImageEpisodes(store, split, drawn, shots, queries, device=model.device)
    )
    source = tasks_for(learner, problem, images)
    for task in range(tasks):
        episodes = source.sample(1, generator(seed, "open-set", split, task))
        (support_x, support_y), (x, y) = (
            (episodes.support_x[0], episodes.support_y[0]),
            (episodes.query_x[0], episodes.query_y[0]),
        )
        known = support_y < ways
        support_x, support_y = support_x[known], support_y[known]
        with torch.no_grad():
            network = freeze_batch_norm(learner.adapt(support_x, support_y), support_x)
        means = ClassMeans.of(features_and_logits(network, support_x)[0], support_y)
        features, logits = features_and_logits(network, x)
        distances, known = means.distances(features), y < ways
        yield OpenTask(
            *(values.cpu() for values in (logits[known], y[known], distances[known], means.spreads)),
            *(values.cpu() for values in (logits[~known], distances[~known])),
        )


@dataclass(frozen=True)
class Refusals:
    """Shares of known and foreign images that a threshold refuses if it may refuse `asked` of the known."""

    asked: float
    known: float
    known_ci95: float
    foreign: float
    foreign_ci95: float


@dataclass(frozen=True)
class OpenSetEvaluation:
    """How well scores separate known from foreign queries, per score, and what thresholds refuse."""

    tasks: int
    split: str
    ways: int
    shots: int
    auroc: dict[str, float]
    """Probability that a foreign image has a larger score than a known one."""
    fpr95: dict[str, float]
    """Share of foreign images that are accepted when 95 % of known images are."""
    refused: dict[str, list[Refusals]]
    """Per score, with thresholds from validation classes. Only `distance` has them stored with the run."""

    def summary(self) -> dict[str, Any]:
        """The fields as plain values."""
        return dataclasses.asdict(self)


def evaluate_open_set(
    model: TrainedModel,
    *,
    split: str = "test",
    tasks: int = 600,
    seed: int = 0,
    shares: tuple[float, ...] = (0.01, 0.05, 0.1),
) -> OpenSetEvaluation:
    """Evaluate on tasks of the size the model was trained with, half of whose queries are foreign."""
    problem: Any = model.config.problem
    size = {"ways": model.ways, "shots": problem.shots}
    found = list(
        open_tasks(model, split=split, tasks=tasks, seed=seed, queries=min(5, problem.queries), **size)
    )
    weight = 0.0 if model.calibration is None else model.calibration.spread_weight(**size)
    known, foreign = scores(found, weight), scores(found, weight, foreign=True)
    refused = {}
    if model.calibration is not None:  # it has thresholds of our score only
        pairs = [(share, model.calibration.threshold(share, **size)) for share in shares]
        ours = known["distance"], foreign["distance"]
        refused["distance"] = [refusals(share, threshold, *ours) for share, threshold in pairs]
    return OpenSetEvaluation(
        tasks,
        split,
        **size,
        auroc={name: area(known[name], foreign[name]) for name in SCORES},
        fpr95={name: false_positives(known[name], foreign[name]) for name in SCORES},
        refused=refused,
    )


def scores(found: list[OpenTask], weight: float, *, foreign: bool = False) -> dict[str, Tensor]:
    """The scores `[tasks, queries]` of known, or of foreign, queries, by the names of `SCORES`.

    `weight` is κ, that of the spreads in our score.
    """
    logits = torch.stack([task.foreign_logits if foreign else task.logits for task in found]).double()
    distances = torch.stack([task.foreign_distances if foreign else task.distances for task in found])
    spreads = torch.stack([task.spreads for task in found]).double()
    distance = nearest(distances.double(), spreads, weight)
    energy, probability = -logits.logsumexp(-1), -logits.softmax(-1).amax(-1)
    return dict(zip(SCORES, (distance, distances.double().amin(-1), energy, probability), strict=True))


def area(known: Tensor, foreign: Tensor) -> float:
    """The area under the ROC curve; ties count half."""
    everything = torch.cat([known.flatten(), foreign.flatten()])
    _, inverse, counts = everything.unique(return_inverse=True, return_counts=True)
    middle = counts.cumsum(0) - (counts - 1) / 2  # the mean rank of equal values, from 1
    ranks = middle[inverse][known.numel() :].double()
    count = foreign.numel()
    return float((ranks.sum() - count * (count + 1) / 2) / (count * known.numel()))


def false_positives(known: Tensor, foreign: Tensor, accepted: float = 0.95) -> float:
    """The share of foreign images below the score that `accepted` of known images are below."""
    threshold = known.flatten().sort().values[int(accepted * (known.numel() - 1))]
    return (foreign <= threshold).double().mean().item()


def refusals(asked: float, threshold: float, known: Tensor, foreign: Tensor) -> Refusals:
    """The shares of known and foreign queries `[tasks, queries]` above a threshold, with 95 % intervals."""
    shares = [(values > threshold).double().mean(1) for values in (known, foreign)]
    numbers = [number for each in shares for number in (each.mean().item(), interval_over_tasks(each))]
    return Refusals(asked, *numbers)


def unknown_images(
    model: TrainedModel, adapted: AdaptedClassifier, support: SupportSet, pixels: Tensor, share: float
) -> list[bool]:
    """Which of pixels `[N, C, size, size]` are of none of the classes of a support set.

    `share` of the images of known classes are called unknown by mistake; `pathaware.inference.calibration`
    says when that holds.
    """
    if model.views != "single":
        raise UsageError("only single views are calibrated", field="unknown")
    if model.calibration is None:
        raise UsageError(
            "the run is not calibrated on its validation classes; docs/answers.md says how to do that",
            field="unknown",
        )
    ways = len(support.classes)
    shots = len(support.labels) / ways
    threshold = model.calibration.threshold(share, ways, shots)
    weight = model.calibration.spread_weight(ways, shots)
    return (foreignness(model, adapted, support, pixels, weight) > threshold).tolist()


def foreignness(
    model: TrainedModel, adapted: AdaptedClassifier, support: SupportSet, pixels: Tensor, weight: float
) -> Tensor:
    """The score `[N]` of pixels `[N, C, size, size]` in 0…255, κ being the `weight` of spreads."""
    learned, _ = features_and_logits(adapted.network, model.support_inputs(support.pixels))
    means, parts = ClassMeans.of(learned, support.labels.to(learned.device)), []
    for part in pixels.split(BATCH):
        features, _ = features_and_logits(adapted.network, adapted.inputs(part))
        parts.append(nearest(means.distances(features), means.spreads, weight).double().cpu())
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
