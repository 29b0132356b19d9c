"""Reptile (Nichol, Achiam and Schulman, 2018, arXiv:1803.02999).

    θⱼ₊₁ = θⱼ − α ∇L_j(θⱼ)                              L_j: the loss on the j-th minibatch of the task
    ∇θ₀ := θ₀ − θₙ

The initialisation moves towards the parameters that tasks end with. No derivative passes through the path,
and no query set is held out: support set and queries together are the task's data. The inner steps share them
equally, so each example is used once. (The method's second-order effect comes from minibatches that differ
along the path.)

Departures from the authors' code:

- The inner optimiser is gradient descent. Theirs is Adam without momentum (β₁ = 0), which `adam` chooses;
  its mean square begins with each task, where theirs goes on from task to task in training.
- There are as many minibatches as inner steps, five by default: of 16 examples with one shot of five classes
  and 15 queries each, and of 20 with five shots. For miniImageNet, theirs trains on 8 minibatches of 10
  examples, so that it uses each of the 15 examples per class that it draws about once. In evaluation each of
  our five steps uses the whole support set; theirs takes 50 (`steps`, with `train_steps = 8`) on minibatches.
- ∇θ₀ goes to the optimiser of the training loop, by default Adam. Theirs takes θ₀ ← θ₀ + ε (θₙ − θ₀) with a
  step size ε that falls linearly to zero.
- Minibatches are consecutive parts of the episode: the support set, then queries in random order. Theirs are
  consecutive parts of all examples in random order.
- Training tasks have `shots` and `queries` examples per class; theirs have 15.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.learner import require_path
from pathaware.core.meta_gradient import MetaGradient
from pathaware.core.parameters import Layout
from pathaware.core.rule import Context, LinearSteps, Memory
from pathaware.core.settings import at_least
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method


class ReptileDescent(GradientDescent):
    """Gradient descent with a constant step size, or with `adam` Adam without momentum.

        vⱼ₊₁ = β vⱼ + (1 − β) ∇L_j²                     β = 0.999
        θⱼ₊₁ = θⱼ − α ∇L_j / (√(vⱼ₊₁ / (1 − βʲ⁺¹)) + 10⁻⁸)

    - `rate`: the step size α; with Adam about the size of a parameter's step, 0.00022 in the authors' code
      for 5-shot miniImageNet.
    """

    def __init__(
        self, network: nn.Module | Layout, steps: int = 5, *, rate: float = 0.01, adam: bool = False
    ) -> None:
        super().__init__(network, steps, rate=rate)
        self.adam = adam

    def default_meta_gradient(self) -> MetaGradient:
        return Reptile()

    def linear_steps(self) -> LinearSteps | None:
        return None if self.adam else super().linear_steps()

    def begin(self, initial: Tensor, context: Context) -> tuple[Tensor, Memory]:
        return initial, torch.zeros_like(initial) if self.adam else None

    def advance(
        self, j: int, points: Sequence[Tensor], gradient: Tensor, losses: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        if self.adam:
            memory = 0.999 * memory + 0.001 * gradient.square()
            gradient = gradient / ((memory / (1 - 0.999 ** (j + 1))).sqrt() + 1e-8)
        return self.step(j, points, gradient), memory


class Reptile(MetaGradient):
    """Uses θ₀ − θₙ as the meta-gradient of the initialisation.

    - `train_steps`: the number of inner steps in training, `steps` if none.
    """

    head_start = False

    def __init__(self, *, train_steps: int | None = None) -> None:
        if train_steps is not None:
            at_least(1, train_steps=train_steps)
        self.train_steps = train_steps

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        learner = require_path(learner)
        if any(True for _ in learner.rule.parameters()):
            raise UsageError(
                "method: Reptile learns an initialisation only; use it with a rule that has no parameters"
            )
        x = torch.cat([episodes.support_x, episodes.query_x], dim=1)
        y = torch.cat([episodes.support_y, episodes.query_y], dim=1)
        steps, count = self.train_steps or learner.rule.steps, x.shape[1]
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
    ReptileDescent,
    meta_gradient=Reptile,
    order="first",
    version=3,
)
