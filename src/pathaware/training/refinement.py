"""Refinements: predictions that use all queries of a task together.

- `centre` needs no more than their mean.
- `means`, `sinkhorn` and `tim` also assume that all classes are equally frequent among them. `means` compares
  features with class means of the support set and of the queries, each query in the share of its
  probability: soft k-means (Ren et al., ICLR 2018, arXiv:1803.00676) with balanced probabilities, as in
  PT-MAP (Hu, Gripon and Pateux, ICANN 2021, arXiv:2006.03806). `sinkhorn` adapts again with their
  pseudo-labels. `tim` fits class weights (Boudiaf et al., NeurIPS 2020, arXiv:2008.11297).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.few_shot import FewShotLearner, StepPredictions, part_of
from pathaware.core.head import one_hot
from pathaware.core.prototype_start import PrototypeStart

Refinement = Literal["none", "centre", "means", "sinkhorn", "tim"]
REFINEMENTS: tuple[Refinement, ...] = get_args(Refinement)
JOINT = ("means", "sinkhorn", "tim")
"""Refinements that assume that all classes are equally frequent."""
BALANCING = 20
"""Iterations of Sinkhorn's algorithm."""
ROUNDS = 2
"""How often `readapted` makes pseudo-labels."""
SHARPNESS, MEANS = 20.0, 5
"""The factor of cosines in `balanced_means`, and how often it computes class means."""
SUPPORT, CERTAINTY, TEMPERATURE = 0.1, 0.1, 15.0
STEPS, RATE = 100, 1e-3
"""λ, α and τ, the number of steps and the learning rate of `tim`."""


def refined(
    refine: Refinement,
    learner: FewShotLearner,
    found: StepPredictions,
    examples: tuple[Tensor, Tensor, Tensor],
    average: Callable[[Tensor], Tensor],
    options: dict[str, Any],
) -> StepPredictions:
    """Refine the predictions `found` for support set and queries, `examples = x, y, queries`.

    `average` takes the mean over the views of a query, if there are several. `means` and `tim` replace the
    last prediction only.
    """
    if refine == "centre":
        return replace(found, outputs=[centred(output) for output in found.outputs])
    if refine == "sinkhorn":
        return readapted(learner, found, *examples, average, options)
    last = (balanced_means if refine == "means" else tim)(learner, *examples)
    return replace(found, outputs=[*found.outputs[:-1], last])


def centred(logits: Tensor) -> Tensor:
    """Logits `[T, Q, classes]` without their mean over the queries of a task.

    For a linear last layer they are those of centred features, without its bias.
    """
    return logits - logits.mean(1, keepdim=True)


def sinkhorn(logits: Tensor) -> Tensor:
    """Class probabilities `[T, Q, classes]` nearest to those of logits for which all classes of a task are
    equally frequent (Sinkhorn's algorithm)."""
    log = logits.log_softmax(-1)
    target = math.log(logits.shape[1] / logits.shape[2])
    for _ in range(BALANCING):
        log = log - log.logsumexp(1, keepdim=True) + target
        log = log.log_softmax(-1)
    return log.exp()


def readapted(
    learner: FewShotLearner,
    found: StepPredictions,
    x: Tensor,
    y: Tensor,
    queries: Tensor,
    average: Callable[[Tensor], Tensor],
    options: dict[str, Any],
) -> StepPredictions:
    """Label the queries by their predictions so that all classes are equally frequent, adapt again to support
    set and queries, and repeat. Every adaptation starts at the initialisation."""
    for _ in range(ROUNDS):
        labels = sinkhorn(average(found.outputs[-1])).argmax(-1)
        labels = labels.repeat(1, queries.shape[1] // labels.shape[1])  # those of mirror images
        both = torch.cat([x, queries], dim=1), torch.cat([y, labels], dim=1)
        found = learner.predictions_per_step(*both, queries, **options)
    return found


def balanced_means(learner: FewShotLearner, x: Tensor, y: Tensor, queries: Tensor) -> Tensor:
    """Logits `[T, Q, ways]`: the cosine to class means of support set and queries, times `SHARPNESS`.

    Features are those of the adapted network, in its learned subspace if it has one. A query belongs to each
    class with its probability, and all classes are equally probable (see `sinkhorn`).
    """
    adapted, start = learner.adapted(x, y, query_x=queries), part_of(learner, PrototypeStart)
    features = adapted.features(x), adapted.features(queries)
    if start is not None and start.projection is not None:
        features = F.linear(features[0], start.projection), F.linear(features[1], start.projection)
    support, query = (F.normalize(z, dim=-1) for z in features)
    known = one_hot(y, int(y.max()) + 1, support).mT @ support
    logits = SHARPNESS * query @ F.normalize(known, dim=-1).mT
    for _ in range(MEANS):
        means = F.normalize(known + sinkhorn(logits).mT @ query, dim=-1)
        logits = SHARPNESS * query @ means.mT
    return logits


def tim(learner: FewShotLearner, x: Tensor, y: Tensor, queries: Tensor) -> Tensor:
    """Transductive information maximisation.

    Return logits `[T, Q, ways]` for the queries of T tasks with support sets `x [T, S, …]`, `y [T, S]`. Class
    weights start as prototypes of the support set and descend `tim_objective` with normalised features z of
    the adapted network and p ∝ exp(−τ/2 ‖z − w‖²). The authors take ten times as many steps by gradient
    descent, with a tenth of the learning rate.
    """
    adapted = learner.adapted(x, y, query_x=queries)
    support, query = (F.normalize(adapted.features(z), dim=-1) for z in (x, queries))
    labels = one_hot(y, int(y.max()) + 1, support)
    prototypes = labels.mT @ support / labels.sum(1)[..., None]
    with torch.enable_grad():
        weights = nn.Parameter(prototypes.detach().clone())
        optimizer = torch.optim.Adam([weights], RATE)
        for _ in range(STEPS):
            optimizer.zero_grad()
            tim_objective(tim_logits(support, weights), labels, tim_logits(query, weights)).sum().backward()
            optimizer.step()
    return tim_logits(query, weights.detach())


def tim_objective(support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    """λ CE(support) − H(mean of p) + α mean of H(p) per task, `[T]`, from logits `[T, N, ways]`.

    Queries should be predicted with certainty, and all classes equally often.
    """
    cross_entropy = -(labels * support.log_softmax(-1)).sum(-1).mean(1)
    log = query.log_softmax(-1)
    mean = log.exp().mean(1)
    marginal = -(mean * mean.clamp_min(1e-12).log()).sum(-1)
    certainty = -(log.exp() * log).sum(-1).mean(1)
    return SUPPORT * cross_entropy - marginal + CERTAINTY * certainty


def tim_logits(z: Tensor, weights: Tensor) -> Tensor:
    """−τ/2 ‖z − w‖² up to a constant of each example."""
    return TEMPERATURE * (z @ weights.mT - weights.square().sum(-1)[:, None] / 2)
