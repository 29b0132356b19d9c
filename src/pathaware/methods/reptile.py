"""Reptile (Nichol, Achiam and Schulman, 2018, arXiv:1803.02999).

    ∇θ₀ := θ₀ − θₙ

No derivative passes through the path and no query set is set apart: support and query together are
the task's data, and every inner step sees the next S examples of them. (Its second-order effect comes
from *different* minibatches along the path, so steps must not all see the same one.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.learner import Context, FewShotLearner, require_path
from pathaware.core.meta_gradient import MetaGradient
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method


class Reptile(MetaGradient):
    """Moves the start towards where the tasks ended up."""

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        learner = require_path(learner)
        if any(True for _ in learner.rule.parameters()):
            raise UsageError("method: Reptile learns a start only; use it with a rule that learns nothing")
        size = episodes.support_x.shape[1]
        x = torch.cat([episodes.support_x, episodes.query_x], dim=1)
        y = torch.cat([episodes.support_y, episodes.query_y], dim=1)
        steps, pool = learner.rule.steps, x.shape[1]

        def gradient(j: int, point: Tensor) -> tuple[Tensor, Tensor]:
            rows = torch.arange(j * size, (j + 1) * size, device=x.device) % pool
            return learner.gradient(point, x[:, rows], y[:, rows])

        path = learner.unroll(Context(learner, x, y), steps, gradient)
        pull = (path.points[0] - path.end).sum(0) * weight
        learner.rule.layout.flatten(learner.model).backward(pull)
        with torch.no_grad():
            return learner.losses(path.end, episodes.query_x, episodes.query_y)


METHOD = Method(
    "reptile",
    "moves the initialisation towards where tasks end",
    "Nichol, Achiam and Schulman, 2018, arXiv:1803.02999",
    2018,
    GradientDescent,
    meta_gradient=Reptile,
    order="first",
)
