"""iMAML, implicit gradients (Rajeswaran, Finn, Kakade and Levine, NeurIPS 2019, arXiv:1909.04630).

    θⱼ₊₁ = θⱼ − αⱼ gⱼ,  gⱼ = ∇L(θⱼ) + λ (θⱼ − θ₀)        minimises L(θ) + λ/2 ‖θ − θ₀‖², θⱼ `[T, D]`
    αⱼ = ‖gⱼ‖² / gⱼᵀ(H + λI)gⱼ                           H = ∇²L(θⱼ), `[T, D, D]`, never formed
    ∇θ₀ := ((1 + ε) I + H/(λ + δ))⁻¹ ∇L_query(θₙ)        H = ∇²L(θₙ)

At the minimum of the regularised loss, its derivative with respect to θ₀ depends only on the Hessian there,
(I + H/λ)⁻¹. So no graph of the path is kept, and memory does not grow with the number of steps. The linear
system is solved by a few conjugate-gradient iterations, which need products H·v only. The damping ε = 1 and
δ = 10 is that of the authors' code: a few steps end before the minimum, and L is not convex. Their
"iMAML, Hessian-free" is `imaml-hf`; this is their "iMAML, GD".

Departures from the authors' code:

- αⱼ is the minimum along gⱼ of a quadratic with the loss's curvature; it is halved until the regularised loss
  does not grow. Where the curvature is negative, the search starts at `rate`. Their code takes steps of a
  constant size. With a constant size, training on sine waves reaches initialisations from which every path
  diverges, since implicit gradients ignore the steps.
- Every step descends the regularised loss, as in the paper. Their code descends L alone and then takes one
  step of the regulariser.
- Where the matrix of the meta-gradient has no positive curvature along ∇L_query, H is left out. Their code
  does not look at the sign.
- The defaults λ = 0.5 and ten steps are ours, for images of miniImageNet's kind, which their code does not
  include. Its defaults, for Omniglot, are λ = 1 and 16 steps of 0.01; the command it suggests, and the paper,
  have λ = 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.learner import require_path
from pathaware.core.meta_gradient import MetaGradient
from pathaware.core.parameters import Layout
from pathaware.core.rule import Allowed, Context, Memory
from pathaware.core.settings import at_least, positive
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method, once
from pathaware.methods.second_order import TRIALS, backtrack, conjugate_gradients, dots, stuck, tries_all

STRENGTH = 0.5
"""The default λ."""


class ProximalDescent(GradientDescent):
    """Proximally regularised gradient descent, θⱼ₊₁ = θⱼ − α (∇L(θⱼ) + λ (θⱼ − θ₀)).

    `rate` is α, `strength` is λ. Also the φ-step of online meta-training, see `pathaware.online.learner`.
    """

    def __init__(
        self, network: nn.Module | Layout, steps: int = 1, *, rate: float = 0.01, strength: float = 0.1
    ) -> None:
        super().__init__(network, steps, rate=rate)
        at_least(0, rate=rate, strength=strength)
        self.strength = strength

    def regularised(self, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        """∇L(θⱼ) + λ (θⱼ − θ₀), all `[T, D]`."""
        return torch.add(gradient, points[-1] - points[0], alpha=self.strength) if self.strength else gradient

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        return super().step(j, points, self.regularised(points, gradient))


class LineSearchDescent(ProximalDescent):
    """Proximal descent whose step sizes come from a line search.

    `rate` is where the search starts if the loss has no minimum along the gradient.
    """

    curvature = True
    allows: frozenset[Allowed] = frozenset({"more classes", "values"})

    def __init__(
        self, network: nn.Module | Layout, steps: int = 10, *, rate: float = 0.01, strength: float = STRENGTH
    ) -> None:
        positive(strength=strength)
        super().__init__(network, steps, rate=rate, strength=strength)

    def default_meta_gradient(self) -> MetaGradient:
        return Implicit(strength=self.strength)

    def begin(self, start: Tensor, context: Context) -> tuple[Tensor, Memory]:
        """The memory holds the tasks, and those of a line search, which may try all sizes at once."""
        if not tries_all(start):
            return start, (context, context)
        examples = (context.support_x, context.support_y)
        x, y = (data.repeat(TRIALS, *[1] * (data.ndim - 1)) for data in examples)
        return start, (context, context.learner.context(x, y))

    def advance(
        self, j: int, points: Sequence[Tensor], gradient: Tensor, losses: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        context, searched = memory
        gradient = self.regularised(points, gradient)
        here, origin = points[-1].detach(), points[0].detach()
        loss, product = context.curvature(points[-1])

        def regularised_hvp(v: Tensor) -> Tensor:
            return torch.add(product(v), v, alpha=self.strength)

        def regularised(loss: Tensor, point: Tensor) -> Tensor:
            away = (point.view(-1, *origin.shape) - origin).square().sum(2).flatten()
            return torch.add(loss, away, alpha=self.strength / 2)

        def objective(point: Tensor) -> Tensor:
            return regularised(searched.support_losses(point), point)

        direction, size = self.direction(gradient, regularised_hvp)
        with torch.no_grad():
            size = backtrack(objective, regularised(loss, here), here, direction, size)
        return torch.addcmul(points[-1], size, direction, value=-1), memory

    def direction(self, gradient: Tensor, hvp: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """The direction to step against, `[T, D]`, and the first step size to try, `[T, 1]`, a constant."""
        constant = gradient.detach()
        square, curvature = dots(constant, constant), dots(constant, hvp(constant))
        return gradient, torch.where(curvature > 0, square / curvature, self.rate)


class Implicit(MetaGradient):
    """The derivative of the regularised minimum, as if the path had reached it.

    `strength` is λ, `damping` is δ, `cg_damping` is ε; `cg_steps` counts conjugate-gradient iterations.
    """

    head_start = False

    def __init__(
        self,
        *,
        strength: float = STRENGTH,
        cg_steps: int = 5,
        damping: float = 10.0,
        cg_damping: float = 1.0,
    ) -> None:
        positive(strength=strength)
        at_least(1, cg_steps=cg_steps)
        at_least(0, damping=damping, cg_damping=cg_damping)
        self.divisor, self.identity, self.cg_steps = strength + damping, 1 + cg_damping, cg_steps

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        learner = require_path(learner)
        layout = learner.rule.layout
        if sum(p.numel() for p in learner.parameters() if p.requires_grad) != len(layout):
            raise UsageError(
                "method: implicit gradients learn an initialisation only; adapt every learned parameter"
            )
        x, y = episodes.support_x, episodes.support_y
        end = learner.end(learner.path(x, y, query_x=episodes.query_x))
        losses, gradient = learner.gradient_at(end, episodes.query_x, episodes.query_y)
        _, hvp = learner.context(x, y).curvature(end)

        def product(v: Tensor) -> Tensor:
            return torch.add(self.identity * v, hvp(v), alpha=1 / self.divisor)

        gradient = gradient.detach()
        solution = conjugate_gradients(product, gradient, self.cg_steps)
        solution = torch.where(stuck(solution), gradient / self.identity, solution)
        layout.flatten(learner.model).backward(solution.sum(0) * weight)
        return losses.detach()


METHOD = Method(
    "imaml",
    "differentiates the regularised minimum instead of the path to it",
    "Rajeswaran, Finn, Kakade and Levine, NeurIPS 2019, arXiv:1909.04630",
    2019,
    LineSearchDescent,
    meta_gradient=Implicit,
    version=3,
    earlier=once(cg_damping=0.0),
)
