"""MAML++ (Antoniou, Edwards and Storkey, ICLR 2019, arXiv:1810.09502).

    θⱼ₊₁ = θⱼ − αⱼ ∘ ∇L(θⱼ)           αⱼ: a learned step size per step and tensor              `[n, tensors]`
    (γ, β)ⱼ₊₁ = (γ, β)₀ + δⱼ          norm layers do not adapt: learned values per step         δ `[n, K]`
    minimise Σⱼ vⱼ L_query(θⱼ), j = 1 … n, where v moves from 1/n each to the last step alone   v `[n]`

MAML with a step size, norm parameters and, early in training, a loss for every step. Points θⱼ are `[T, D]`;
K of the D entries belong to norm layers. The paper's cosine decay of the outer learning rate is
`training.schedule = "cosine"`; its first-order phase is `first_order_share`.

Departures from the authors' code:

- Batch norm has no running statistics per step. Theirs records them, but always normalises by the batch, as
  is done here.
- The norm parameters of a step are the network's own plus δ, which is initialised to zero, so that pretrained
  norm layers are kept at every step. Theirs are separate parameters per step.
- In theirs the support pass of step j and the query pass after it share norm parameters. Here those of step j
  take effect at its new point: its support pass still uses those of the step before, and the first step the
  network's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from pathaware.core.episodes import Episodes
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.learner import require_path
from pathaware.core.meta_gradient import MetaGradient, Unrolled
from pathaware.core.parameters import NORMS, GroupBroadcast
from pathaware.core.rule import Coefficient
from pathaware.core.settings import at_least, fractions
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method

LEAST = 0.03
"""Lower bound of an early step's loss weight, as a fraction of its initial value."""


class MamlPlusPlus(GradientDescent):
    """Gradient descent with step sizes and norm parameters per step.

    - `learned_rates`: learn step sizes `q [steps, tensors]`, initialised to `rate`, instead of the constant
      `rate`. Those of norm layers have no effect if `per_step_norm`.
    - `per_step_norm`: learn gains and shifts of norm layers per step instead of adapting them;
      `norms [steps, K]` is δ. Without effect if the network has no norm layers.
    """

    norm_index: Tensor

    def __init__(
        self,
        network: nn.Module,
        steps: int = 5,
        *,
        rate: float = 0.01,
        learned_rates: bool = True,
        per_step_norm: bool = True,
    ) -> None:
        at_least(0, rate=rate)
        super().__init__(network, steps, rate=rate)
        self.q_groups = GroupBroadcast(self.layout, "tensor") if learned_rates else None
        if self.q_groups is not None:
            self.q = nn.Parameter(torch.full((steps, self.q_groups.groups), float(rate)))
        self.norms: nn.Parameter | None = None
        parts = torch.arange(len(self.layout)).split(self.layout.sizes)
        entries = zip(self.layout.entries, parts, strict=True)
        norm_parts = [part for entry, part in entries if _normalises(network, entry.name)]
        if per_step_norm and norm_parts:
            self.register_buffer("norm_index", torch.cat(norm_parts), persistent=False)
            self.norms = nn.Parameter(torch.zeros(steps, len(self.norm_index)))

    def default_meta_gradient(self) -> MetaGradient:
        return MultiStep()

    def coefficients(self) -> Mapping[str, Coefficient]:
        groups = self.q_groups
        return {} if groups is None else {"q": Coefficient(groups, range(self.steps), 1.0)}

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        j = min(j, self.steps - 1)
        if self.q_groups is None:
            moved = super().step(j, points, gradient)
        else:
            moved = torch.addcmul(points[-1], self.q_groups(self.q[j]), gradient, value=-1)
        if self.norms is None:
            return moved
        norms = points[0].index_select(1, self.norm_index) + self.norms[j]
        return moved.index_copy(1, self.norm_index, norms)


class MultiStep(Unrolled):
    """The meta-gradient of a weighted sum of the query losses after every step.

    - `multi_step_loss`: use the losses of all steps during the first `multi_step_share` of training, after
      that the last step's alone.
    - `first_order_share`: the first part of training in which inner gradients are held constant. The paper
      offers it to save time; the authors' miniImageNet configuration leaves it off.
    """

    def __init__(
        self,
        *,
        multi_step_loss: bool = True,
        multi_step_share: float = 0.15,
        first_order_share: float = 0.0,
    ) -> None:
        fractions(multi_step_share=multi_step_share, first_order_share=first_order_share)
        self.multi_step_share = multi_step_share if multi_step_loss else 0.0
        self.first_order_share = first_order_share
        self.weights: Tensor | None = None
        self._enter(0.0)

    def _enter(self, progress: float) -> None:
        self.order = "first" if progress < self.first_order_share else "second"
        self.multi_step = progress < self.multi_step_share

    def on_progress(self, progress: float, learner: FewShotLearner) -> bool:
        before = self.order, self.multi_step
        self._enter(progress)
        if self.multi_step:
            if self.weights is None:
                self.weights = next(learner.parameters()).new_empty(require_path(learner).rule.steps)
            steps = len(self.weights)
            early = max(1 - progress / self.multi_step_share, LEAST) / steps
            self.weights.fill_(early)
            self.weights[-1].fill_(1 - (steps - 1) * early)
        return before != (self.order, self.multi_step)

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        if not self.multi_step:
            return super().backward(learner, episodes, weight)
        learner = require_path(learner)
        if self.weights is None:  # outside of a training loop: as at its beginning
            self.on_progress(0.0, learner)
        assert self.weights is not None
        x, y = episodes.query_x, episodes.query_y
        path = learner.path(episodes.support_x, episodes.support_y, order=self.order, query_x=x)
        losses = torch.stack(
            [learner.execution.query_losses(learner.end(path, j), x, y) for j in range(1, len(path.points))]
        )
        ((self.weights.to(losses) @ losses).sum() * weight).backward()
        return losses[-1].detach()


def _normalises(network: nn.Module, parameter: str) -> bool:
    """True if this parameter is a gain or shift of a norm layer."""
    return isinstance(network.get_submodule(parameter.rpartition(".")[0]), NORMS)


METHOD = Method(
    "maml++",
    "MAML with step sizes, norm parameters and a loss per step",
    "Antoniou, Edwards and Storkey, ICLR 2019, arXiv:1810.09502",
    2019,
    MamlPlusPlus,
    meta_gradient=MultiStep,
)
