"""Meta-gradients: the gradient of the query loss after adaptation with respect to θ₀ and Φ, or an estimate.

`Unrolled` differentiates through the path (Finn, Abbeel and Levine, ICML 2017, arXiv:1703.03400):

    second order:  ∇_{θ₀,Φ} L_query(θₙ), exactly
    first order:   the same with every inner gradient ∇L(θⱼ) held constant (FOMAML)

With first order the coefficients Φ still learn: θⱼ − Q ∘ g is differentiable in Q for a constant g.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.path import check_order

if TYPE_CHECKING:
    from pathaware.core.few_shot import FewShotLearner


class MetaGradient(ABC):
    """Accumulates a meta-gradient in the `.grad` of the learner's parameters."""

    head_start: ClassVar[bool] = True
    """False if it assumes that a path begins at θ₀: then the last layer cannot begin elsewhere."""

    @abstractmethod
    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        """Add `weight` times the sum of these tasks' meta-gradients; return their losses `[T]`.

        A meta-batch may be split into several calls, each with some of its tasks and the same weight.
        """

    def loss(self, learner: FewShotLearner, episodes: Episodes) -> Tensor:
        """The mean loss of these tasks, whose `backward()` adds their mean meta-gradient.

        The meta-gradient is computed at once, and kept until then.
        """
        parameters = [p for p in learner.parameters() if p.requires_grad]
        before = [p.grad for p in parameters]
        for p in parameters:
            p.grad = None
        try:
            losses = self.backward(learner, episodes, 1 / len(episodes))
            found = [p.grad for p in parameters]
        finally:
            for p, gradient in zip(parameters, before, strict=True):
                p.grad = gradient
        loss: Tensor = _Computed.apply(losses.mean(), found, *parameters)
        return loss

    def task_threads(self, learner: FewShotLearner, tasks: int) -> AbstractContextManager[None]:
        """A context in which each thread may run a group of these tasks, not a part of every operation.

        Override it if much of the work is outside the inner loop: PyTorch's own threads divide that better.
        """
        return learner._task_threads(tasks)

    @property
    def compilable_order(self) -> Literal["second", "first"] | None:
        """The order of derivatives if `backward` does no more than differentiate `adapted_losses`, which can
        be compiled as a whole (see `pathaware.engine.compiled`); else None."""
        return None

    def on_progress(self, progress: float, learner: FewShotLearner) -> bool:
        """Called before each iteration with the fraction of training completed.

        Numbers that change must be kept in tensors and updated in place, because an iteration may be replayed
        from a captured CUDA graph. Return True to invalidate a captured CUDA graph.
        """
        return False


class Unrolled(MetaGradient):
    """The meta-gradient of the query loss through the unrolled inner loop."""

    def __init__(self, order: Literal["second", "first"] = "second") -> None:
        check_order(order, ("second", "first"))
        self.order = order

    @property
    def compilable_order(self) -> Literal["second", "first"] | None:
        return self.order if type(self).backward is Unrolled.backward else None  # a subclass may do more

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        losses = learner.adapted_losses(episodes, order=self.order)
        losses.backward(torch.full_like(losses, weight))
        return losses.detach()

    def loss(self, learner: FewShotLearner, episodes: Episodes) -> Tensor:
        if self.compilable_order is None:
            return super().loss(learner, episodes)
        return learner.adapted_losses(episodes, order=self.order).mean()


def first_order() -> MetaGradient:
    """The first-order meta-gradient of FOMAML."""
    return Unrolled("first")


class _Computed(torch.autograd.Function):
    """A value whose gradients are known already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, gradients: list[Tensor | None], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return value.clone()

    @staticmethod
    def backward(ctx: Any, factor: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise UsageError("the meta-gradient has no derivative of its own", field="create_graph")
        return None, None, *(None if g is None else factor * g for g in ctx.gradients)
