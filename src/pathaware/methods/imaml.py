"""iMAML, implicit gradients (Rajeswaran, Finn, Kakade and Levine, NeurIPS 2019, arXiv:1909.04630).

    θⱼ₊₁ = θⱼ − αⱼ gⱼ,  gⱼ = ∇L(θⱼ) + λ (θⱼ − θ₀)        descends L(θ) + λ/2 ‖θ − θ₀‖², every θⱼ `[T, D]`
    ∇θ₀ := (I + H/λ)⁻¹ ∇L_query(θₙ)                      H = ∇²L(θₙ), `[T, D, D]`, never formed

Where the regularised loss has its minimum, the derivative of that minimum by θ₀ depends on nothing but the
curvature there. So the path is followed without a graph, and memory does not grow with its steps. The system
is solved by a few conjugate gradients, which need products H·v only.

The paper leaves the inner optimiser open. Here αⱼ is a rate α, or, where that is shorter, the way to the
lowest point along gⱼ, ‖gⱼ‖² / gⱼᵀ(H + λI)gⱼ. For a derivative that knows nothing of steps does not mind how
steep the valley gets: with a constant rate, training on sine waves ends where every task's path diverges.

`damping` δ puts H/(λ + δ) for H/λ, as the authors' own code does with δ = 10: few short steps end before the
minimum, where the start counts for more than H/λ says, and L is not convex, which a larger divisor forgives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.learner import Context, FewShotLearner, MetaLearner, require_path
from pathaware.core.meta_gradient import MetaGradient
from pathaware.core.parameters import Layout
from pathaware.core.rule import Memory, Rule
from pathaware.core.settings import at_least
from pathaware.methods.method import Method

STRENGTH = 0.5


class Proximal(Rule):
    """Gradient descent that a spring of this `strength` holds to the start, by steps of at most `rate`."""

    def __init__(
        self, network: nn.Module | Layout, steps: int = 10, *, rate: float = 0.01, strength: float = STRENGTH
    ) -> None:
        super().__init__(network, steps)
        at_least(0, rate=rate)
        refuse_no_strength(strength)
        self.rate, self.strength = rate, strength

    def begin(self, start: Tensor, context: Context) -> tuple[Tensor, Memory]:
        return start, context

    def advance(
        self, j: int, points: Sequence[Tensor], gradient: Tensor, losses: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        here = points[-1]
        slope = torch.add(gradient, here - points[0], alpha=self.strength)
        return torch.addcmul(here, self.length(here, slope.detach(), memory), slope, value=-1), memory

    def length(self, here: Tensor, slope: Tensor, context: Context) -> Tensor:
        """αⱼ `[T, 1]`, a constant to derivatives; the rate where the loss bends down for good."""
        product = hessian(context.learner, here, context.support_x, context.support_y)
        square = dots(slope, slope)
        curvature = dots(slope, product(slope)) + self.strength * square
        return torch.where(curvature > 0, square / curvature, self.rate).clamp(max=self.rate)


class Implicit(MetaGradient):
    """The derivative of a regularised minimum, as if the path had reached it."""

    def __init__(self, *, strength: float = STRENGTH, cg_steps: int = 5, damping: float = 10.0) -> None:
        refuse_no_strength(strength)
        at_least(1, cg_steps=cg_steps)
        at_least(0, damping=damping)
        self.divisor, self.cg_steps = strength + damping, cg_steps

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        learner = require_path(learner)
        layout = learner.rule.layout
        if sum(p.numel() for p in learner.parameters() if p.requires_grad) != len(layout):
            raise UsageError("method: implicit gradients are of a start only; adapt all that is learned")
        x, y = episodes.support_x, episodes.support_y
        end = learner.end(learner.path(x, y, query_x=episodes.query_x))
        losses, pull = learner.gradient(end, episodes.query_x, episodes.query_y)
        curved = hessian(learner, end, x, y)

        def product(v: Tensor) -> Tensor:
            return torch.add(v, curved(v), alpha=1 / self.divisor)

        solution = conjugate_gradients(product, pull.detach(), self.cg_steps)
        layout.flatten(learner.model).backward(solution.sum(0) * weight)
        return losses.detach()


def hessian(learner: MetaLearner, point: Tensor, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """v ↦ H v, each task's own at its point; all `[T, D]`."""
    with torch.enable_grad():
        here = point.detach().requires_grad_()
        slope = learner.gradient(here, x, y, create_graph=True)[1]

    def product(v: Tensor) -> Tensor:
        (curved,) = torch.autograd.grad(slope, here, v, retain_graph=True)
        return curved

    return product


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
    meta_gradient=Implicit,
)
