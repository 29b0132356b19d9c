"""iMAML, implicit gradients (Rajeswaran, Finn, Kakade and Levine, NeurIPS 2019, arXiv:1909.04630).

    θⱼ₊₁ = θⱼ − α (∇L(θⱼ) + λ (θⱼ − θ₀))             descends L(θ) + λ/2 ‖θ − θ₀‖², every θⱼ `[T, D]`
    ∇θ₀ := (I + H/λ)⁻¹ ∇L_query(θₙ)                  H = ∇²L(θₙ), `[T, D, D]`, never formed

Where the regularised loss has its minimum, the derivative of that minimum by θ₀ depends on nothing but the
curvature there. So the path is followed without a graph, and memory does not grow with its steps. The system
is solved by a few conjugate gradients, which need products H·v only.

`damping` δ puts H/(λ + δ) for H/λ, as the authors' own code does with δ = 10: few short steps end before the
minimum, where the start counts for more than H/λ says, and L is not convex, which a larger divisor forgives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pathaware.errors import UsageError
from pathaware.few_shot import FewShotLearner
from pathaware.layout import Layout
from pathaware.learner import with_path
from pathaware.methods.base import Method
from pathaware.outer import Outer
from pathaware.rules import Rule
from pathaware.settings import at_least
from pathaware.tasks.episodes import Episodes

STRENGTH = 0.5


class Proximal(Rule):
    """Gradient descent that a spring of this `strength` holds to the start."""

    def __init__(
        self, network: nn.Module | Layout, steps: int = 10, *, rate: float = 0.01, strength: float = STRENGTH
    ) -> None:
        super().__init__(network, steps)
        refuse_no_strength(strength)
        self.rate, self.strength = rate, strength

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        here = points[-1]
        slope = torch.add(gradient, here - points[0], alpha=self.strength)
        return torch.add(here, slope, alpha=-self.rate)


class Implicit(Outer):
    """The derivative of a regularised minimum, as if the path had reached it."""

    def __init__(self, *, strength: float = STRENGTH, cg_steps: int = 5, damping: float = 10.0) -> None:
        refuse_no_strength(strength)
        at_least(1, cg_steps=cg_steps)
        at_least(0, damping=damping)
        self.divisor, self.cg_steps = strength + damping, cg_steps

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        learner = with_path(learner)
        layout = learner.rule.layout
        if sum(p.numel() for p in learner.parameters() if p.requires_grad) != len(layout):
            raise UsageError("method: implicit gradients are of a start only; adapt all that is learned")
        x, y = episodes.support_x, episodes.support_y
        end = learner.end(learner.path(x, y, query_x=episodes.query_x)).detach().requires_grad_()
        losses, pull = learner.gradient(end, episodes.query_x, episodes.query_y)
        slope = learner.gradient(end, x, y, create_graph=True)[1]

        def product(v: Tensor) -> Tensor:
            (curved,) = torch.autograd.grad(slope, end, v, retain_graph=True)
            return torch.add(v, curved, alpha=1 / self.divisor)

        solution = conjugate_gradients(product, pull.detach(), self.cg_steps)
        layout.flatten(learner.model).backward(solution.sum(0) * weight)
        return losses.detach()


@torch.no_grad()
def conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, steps: int) -> Tensor:
    """x with A x ≈ b, each row of `b [T, D]` a system of its own whose A `product` applies.

    A row stops for good where it is solved, and where its A turns out not to be positive: a minimum along
    such a direction does not exist.
    """
    x, residual, direction = torch.zeros_like(b), b, b
    size = dots(residual, residual)
    for _ in range(steps):
        ahead = product(direction)
        curvature = dots(direction, ahead)
        going = (curvature > 0) & (size > 0)
        length = torch.where(going, size / curvature, 0)
        x = x + length * direction
        residual = residual - length * ahead
        before, size = size, dots(residual, residual)
        direction = torch.where(going, residual + size / before * direction, 0)
    return x


def dots(a: Tensor, b: Tensor) -> Tensor:
    """Row by row, `[T, 1]`."""
    return (a * b).sum(1, keepdim=True)


def refuse_no_strength(strength: float) -> None:
    if strength <= 0:
        raise UsageError(f"strength: {strength} is not allowed; above 0")


METHOD = Method(
    "imaml",
    "differentiates the minimum near the start, not the path to it",
    "Rajeswaran, Finn, Kakade and Levine, NeurIPS 2019, arXiv:1909.04630",
    2019,
    Proximal,
    outer=Implicit,
)
