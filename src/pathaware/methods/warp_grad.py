"""WarpGrad (Flennerhag, Rusu, Pascanu, Visin, Yin and Hadsell, ICLR 2020, arXiv:1909.00025).

    θⱼ₊₁ = θⱼ − α ∇L_support(θⱼ; φ)                                       φ: warp layers, which do not adapt
    L(φ) = mean over j < n of L_query(θⱼ − α ∇L_support(θⱼ; φ); φ)        every θⱼ `[T, D]` held constant

Warp layers between those that adapt precondition their gradients. They learn from single steps, taken from
wherever tasks have been: no derivative passes along the path, so memory does not grow with its length. The
mean over j is the paper's expectation over points of the paths.

θ₀ is learned by an objective of its own, which is free in the paper; see `WarpGrad`. Warp layers are linear
and start as the identity: what they and the layers around them compute together is not linear.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.learner import Context, FewShotLearner, MetaLearner, require_path
from pathaware.core.meta_gradient import MetaGradient
from pathaware.core.parameters import Layout
from pathaware.core.settings import at_least
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method
from pathaware.models.surgery import LAYERS, identity_after, insert, inserted

PREFIX = "warp"

Start = Literal["query", "pull", "maml"]


def warped(model: nn.Module, *, kernel: int = 3) -> nn.Module:
    """The network with a layer `warp1`, `warp2`, … ahead of every adapted one but the first.

    There it stands behind the pooling, where images are small and blocks that run as one stay whole.
    `kernel` is the size of warp layers that are convolutions.
    """
    at_least(1, kernel=kernel)
    if kernel % 2 == 0:
        raise UsageError(f"kernel: {kernel} is not allowed; an odd number, or images would change their size")
    after: dict[str, nn.Module] = {}
    before, features = "", None
    for name, child in model.named_children():
        inside = [module for module in child.modules() if isinstance(module, LAYERS)]
        if features is not None and (inside or isinstance(child, nn.Flatten)):
            after[before] = identity_after(features, kernel=kernel, bias=True)
            features = None
        before, features = name, inside[-1] if inside else features
    if not after:
        raise UsageError("model: it has no two layers for a warp layer to stand between")
    return insert(model, PREFIX, after)


class Warped(GradientDescent):
    """Gradient descent of all but the warp layers."""

    def __init__(self, network: nn.Module, steps: int = 5, *, rate: float = 0.01) -> None:
        layout = Layout.of(network, adapted=lambda name: not inserted(PREFIX, name))
        super().__init__(layout, steps, rate=rate)


class WarpGrad(MetaGradient):
    """∇L(φ), and a gradient of θ₀ by another objective.

    `start`: `query`, the gradient of the query loss where tasks end (first-order MAML); `pull`, θ₀ − θₙ
    (Reptile); `maml`, through the path, with its memory (the paper's Warp-MAML).
    """

    def __init__(self, *, start: Start = "query") -> None:
        if start not in get_args(Start):
            raise UsageError(f"start: {start!r} is none of {', '.join(get_args(Start))}")
        self.start = start

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        learner = require_path(learner)
        x, y, query_x, query_y = episodes.tensors()
        adapted, shared = _parted(learner)

        def gradient(j: int, point: Tensor) -> tuple[Tensor, Tensor]:
            """Also adds ∇φ of what this step leads to; its graph is gone before the next step is taken."""
            with torch.enable_grad():
                here = point.detach().requires_grad_()
                losses, slope = learner.gradient(here, x, y, create_graph=True)
                ahead = learner.losses(learner.rule.step(j, [here], slope), query_x, query_y)
                (ahead.sum() * (weight / learner.rule.steps)).backward(inputs=shared)
            return losses.detach(), slope.detach()

        path = learner.unroll(Context(learner, x, y), learner.rule.steps, gradient)
        if self.start == "maml":
            losses = learner.task_losses(episodes)
            (losses.sum() * weight).backward(inputs=adapted)
            return losses.detach()
        with torch.no_grad():
            path.losses.append(learner.losses(path.end, x, y))
        end = learner.end(path)
        losses, slope = learner.gradient(end, query_x, query_y)
        pull = path.points[0] - end if self.start == "pull" else slope
        learner.rule.layout.flatten(learner.model).backward(pull.sum(0) * weight)
        return losses.detach()


def _parted(learner: MetaLearner) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters that adapt, and those that all tasks share."""
    names = {entry.name for entry in learner.rule.layout.entries}
    parts: tuple[list[Tensor], list[Tensor]] = ([], [])
    for name, parameter in learner.model.named_parameters():
        parts[name not in names].append(parameter)
    return parts


METHOD = Method(
    "warp-grad",
    "learns layers that precondition gradients, from single steps",
    "Flennerhag, Rusu, Pascanu, Visin, Yin and Hadsell, ICLR 2020, arXiv:1909.00025",
    2020,
    Warped,
    meta_gradient=WarpGrad,
    network=warped,
)
