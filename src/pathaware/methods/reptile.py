"""Reptile (Nichol, Achiam and Schulman, 2018, arXiv:1803.02999).

    θⱼ₊₁ = θⱼ − α ∇L_j(θⱼ)                              L_j: the loss on the j-th minibatch of the task
    ∇θ₀ := θ₀ − θₙ

The initialisation moves towards the parameters that tasks end with. No derivative passes through the path,
and no query set is held out: support set and queries together are the task's data. The inner steps share them
equally, so each example is used once. (The method's second-order effect comes from minibatches that differ
along the path.)

Departures from the authors' code:

- The inner optimiser is gradient descent. Theirs is Adam without momentum (β₁ = 0).
- There are as many minibatches as inner steps, five by default: of 16 examples with one shot of five classes
  and 15 queries each, and of 20 with five shots. For miniImageNet, theirs trains on 8 minibatches of 10
  examples, so that it uses each of the 15 examples per class that it draws about once. In evaluation each of
  our five steps uses the whole support set; theirs takes 50 steps on minibatches.
- ∇θ₀ goes to the optimiser of the training loop, by default Adam. Theirs takes θ₀ ← θ₀ + ε (θₙ − θ₀) with a
  step size ε that falls linearly to zero.
- Minibatches are consecutive parts of the episode: the support set, then queries in random order. Theirs are
  consecutive parts of all examples in random order.
- As many inner steps are taken in training as in evaluation, and training tasks have `shots` and `queries`
  examples per class. Theirs take more steps in evaluation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.learner import require_path
from pathaware.core.meta_gradient import MetaGradient
from pathaware.core.rule import Context
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method


class Reptile(MetaGradient):
    """Uses θ₀ − θₙ as the meta-gradient of the initialisation."""

    head_start = False

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        learner = require_path(learner)
        if any(True for _ in learner.rule.parameters()):
            raise UsageError(
                "method: Reptile learns an initialisation only; use it with a rule that has no parameters"
            )
        x = torch.cat([episodes.support_x, episodes.query_x], dim=1)
        y = torch.cat([episodes.support_y, episodes.query_y], dim=1)
        steps, count = learner.rule.steps, x.shape[1]
        size = max(count // steps, 1)

        def gradient(j: int, point: Tensor) -> tuple[Tensor, Tensor]:
            rows = torch.arange(j * size, (j + 1) * size, device=x.device) % count
            return learner.gradient_at(point, x[:, rows], y[:, rows])

        path = learner.unroll(Context(learner, x, y), steps, gradient)
        with torch.no_grad():
            path.losses.append(learner.losses_at(path.end, episodes.query_x, episodes.query_y))
            end, losses = path.best() if learner.guard else (path.end, path.losses[-1])
        meta_gradient = (path.points[0] - end).sum(0) * weight
        learner.rule.layout.flatten(learner.model).backward(meta_gradient)
        return losses


METHOD = Method(
    "reptile",
    "moves the initialisation towards the parameters that tasks end with",
    "Nichol, Achiam and Schulman, 2018, arXiv:1803.02999",
    2018,
    GradientDescent,
    meta_gradient=Reptile,
    order="first",
    version=3,
)
