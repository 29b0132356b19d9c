"""Helpers for tests of methods: small learners, and meta-gradients by finite differences."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pathaware import Episodes
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.meta_gradient import MetaGradient
from pathaware.methods import get_method
from tests.conftest import small_problem


def learner_of(
    name: str, kind: str = "conv", **settings: Any
) -> tuple[FewShotLearner, MetaGradient, Episodes]:
    """A small learner of a method, its estimator, and tasks: `conv` classifies, `mlp` fits curves."""
    model, loss, episodes = small_problem(kind)
    chosen = get_method(name)
    options = {key: settings.pop(key) for key in ("execution", "guard", "checkpoint") if key in settings}
    learner = chosen.build(model, settings, loss, **options)
    episodes = replace(episodes, labelled=chosen.problem.get("labels", True))
    return learner.to(torch.get_default_dtype()), learner.meta_gradient, episodes


def scattered(learner: FewShotLearner, scale: float = 0.1) -> FewShotLearner:
    """Perturb all parameters: zeros and ones of the initialisation would hide mistakes."""
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return learner


def estimated(learner: FewShotLearner, outer: MetaGradient, episodes: Episodes) -> Tensor:
    """The estimator's mean meta-gradient over the tasks as one vector."""
    learner.zero_grad()
    outer.backward(learner, episodes, 1 / len(episodes))
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in learner.parameters()]
    )


def most_kept(learner: FewShotLearner, outer: MetaGradient, episodes: Episodes) -> int:
    """The largest number of bytes that autograd keeps at one time."""
    held = {"now": 0, "most": 0}

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor.detach()  # its graph would hold on to this
            held["now"] += tensor.nbytes
            held["most"] = max(held["most"], held["now"])
            weakref.finalize(self, lambda size: held.update(now=held["now"] - size), tensor.nbytes)

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        outer.backward(learner, episodes, 1.0)
    return held["most"]


@torch.no_grad()
def differences(
    learner: FewShotLearner, value: Callable[[], Tensor], step: float = 1e-6, most: int = 150
) -> tuple[Tensor, Tensor]:
    """Central differences of `value()`, and the indices of the coordinates they belong to.

    At most `most` coordinates, spread evenly, so that networks need not be tiny.
    """
    flats = [parameter.view(-1) for parameter in learner.parameters()]
    places = [(flat, i) for flat in flats for i in range(flat.numel())]
    chosen = torch.linspace(0, len(places) - 1, min(most, len(places))).long().unique()
    gradients = []
    for place in chosen.tolist():
        flat, i = places[place]
        centre = flat[i].item()
        sides = []
        for side in (step, -step):
            flat[i] = centre + side
            sides.append(value().item())
        flat[i] = centre
        gradients.append((sides[0] - sides[1]) / (2 * step))
    return torch.tensor(gradients), chosen


def error_of_meta_gradient(learner: FewShotLearner, outer: MetaGradient, episodes: Episodes) -> float:
    """‖estimated − by differences‖ / ‖by differences‖, where the estimator claims to be exact."""
    found = estimated(learner, outer, episodes)
    gradients, chosen = differences(learner, lambda: learner.query_loss(episodes))
    return float((found[chosen] - gradients).norm() / gradients.norm())
