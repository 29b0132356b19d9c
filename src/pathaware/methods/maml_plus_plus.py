"""MAML++ (Antoniou, Edwards and Storkey, ICLR 2019, arXiv:1810.09502).

    θⱼ₊₁ = θⱼ − αⱼ ∘ ∇L(θⱼ)           αⱼ: a learned rate for every step and tensor            `[n, tensors]`
    (γ, β)ⱼ₊₁ = (γ, β)₀ + δⱼ          norm layers do not adapt: each step has its own, learned  δ `[n, K]`
    minimise Σⱼ vⱼ L_query(θⱼ), j = 1 … n, where v goes from 1/n each to the last step alone    v `[n]`

Points θⱼ are `[T, D]`; K of the D entries belong to norm layers. δ starts at nought. It is added to the
network's own gains and shifts, so that a start from pretrained features holds at every step.

The paper has two more parts. The outer rate that falls with a cosine is `training.schedule = "cosine"`. The
running statistics of batch norm for every step are left out: the authors' program records them but always
normalises by the batch, as is done here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.learner import FewShotLearner, require_path
from pathaware.core.meta_gradient import Unrolled
from pathaware.core.parameters import NORMS, GroupBroadcast
from pathaware.core.settings import at_least
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method

LEAST = 0.03
"""Of its first weight, what a step before the last keeps for as long as the loss has several."""


class MamlPlusPlus(GradientDescent):
    """Gradient descent with rates and norm layers of each step's own.

    - `learned_rates`: `q [steps, tensors]`, starting at `rate`, instead of the constant `rate`. Those of
      norm layers have no effect where these do not adapt.
    - `per_step_norm`: gains and shifts of norm layers are set, not adapted; `norms [steps, K]` is δ. A
      network without such layers has nothing to set.
    """

    places: Tensor

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
        self.spread = GroupBroadcast(self.layout, "tensor") if learned_rates else None
        if self.spread is not None:
            self.q = nn.Parameter(torch.full((steps, self.spread.groups), rate))
        self.norms: nn.Parameter | None = None
        parts = torch.arange(len(self.layout)).split(self.layout.sizes)
        entries = zip(self.layout.entries, parts, strict=True)
        places = [part for entry, part in entries if _normalises(network, entry.name)]
        if per_step_norm and places:
            self.register_buffer("places", torch.cat(places), persistent=False)
            self.norms = nn.Parameter(torch.zeros(steps, len(self.places)))

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        j = min(j, self.steps - 1)
        if self.spread is None:
            moved = super().step(j, points, gradient)
        else:
            moved = torch.addcmul(points[-1], self.spread(self.q[j]), gradient, value=-1)
        if self.norms is None:
            return moved
        return moved.index_copy(1, self.places, points[0].index_select(1, self.places) + self.norms[j])


class MultiStep(Unrolled):
    """The meta-gradient of query losses after every step, later of the last alone; first order, then second.

    - `multi_step_loss`: whether there is more than the last step's loss, for the first `multi_step_share`
      of training.
    - `first_order_share`: the part of training, from its beginning, in which inner gradients are held
      constant. The paper offers it to save time; the authors' miniImageNet configuration leaves it off.
    """

    def __init__(
        self,
        *,
        multi_step_loss: bool = True,
        multi_step_share: float = 0.15,
        first_order_share: float = 0.0,
    ) -> None:
        for name, share in (("multi_step_share", multi_step_share), ("first_order_share", first_order_share)):
            if not 0 <= share <= 1:
                raise UsageError(f"{name}: {share} is not allowed; 0 to 1, a part of training")
        self.multi_step_share = multi_step_share if multi_step_loss else 0.0
        self.first_order_share = first_order_share
        self.weights: Tensor | None = None
        self._enter(0.0)

    def _enter(self, progress: float) -> None:
        self.order = "first" if progress < self.first_order_share else "second"
        self.several = progress < self.multi_step_share

    def on_progress(self, progress: float, learner: FewShotLearner) -> bool:
        before = self.order, self.several
        self._enter(progress)
        if self.several:
            if self.weights is None:
                self.weights = next(learner.parameters()).new_empty(require_path(learner).rule.steps)
            steps = len(self.weights)
            early = max(1 - progress / self.multi_step_share, LEAST) / steps
            self.weights.fill_(early)
            self.weights[-1].fill_(1 - (steps - 1) * early)
        return before != (self.order, self.several)

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        if not self.several:
            return super().backward(learner, episodes, weight)
        learner = require_path(learner)
        if self.weights is None:  # nobody has said how far training is: it begins
            self.on_progress(0.0, learner)
        assert self.weights is not None
        x, y = episodes.query_x, episodes.query_y
        path = learner.path(episodes.support_x, episodes.support_y, order=self.order, query_x=x)
        losses = torch.stack(
            [learner.query_losses(learner.end(path, j), x, y) for j in range(1, len(path.points))]
        )
        ((self.weights @ losses).sum() * weight).backward()
        return losses[-1].detach()


def _normalises(network: nn.Module, parameter: str) -> bool:
    """Whether this parameter is a gain or shift of a norm layer."""
    return isinstance(network.get_submodule(parameter.rpartition(".")[0]), NORMS)


METHOD = Method(
    "maml++",
    "MAML with rates, norms and a loss for every step",
    "Antoniou, Edwards and Storkey, ICLR 2019, arXiv:1810.09502",
    2019,
    MamlPlusPlus,
    meta_gradient=MultiStep,
)
