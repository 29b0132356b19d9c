"""WarpGrad (Flennerhag, Rusu, Pascanu, Visin, Yin and Hadsell, ICLR 2020, arXiv:1909.00025).

    θⱼ₊₁ = θⱼ − α ∇L_support(θⱼ; φ)                                       φ: warp layers, which do not adapt
    L(φ) = mean over j < n of L_query(θⱼ − α ∇L_support(θⱼ; φ); φ)        every θⱼ `[T, D]` held constant

Warp layers between the adapted layers precondition their gradients. They are learned from single steps, taken
from every point of the paths: no derivative passes along a path. The mean over j is the paper's expectation
over points of the paths. θ₀ is learned by a separate objective, which the paper leaves open; the default is
MAML's, as in its "Warp-MAML" for few-shot tasks. With the other objectives memory does not grow along the
path.

Departures from the authors' code:

- The defaults are five steps of α = 0.01, as for the other methods. Theirs, for Omniglot with 100 inner steps
  of 0.1, combines warp layers with Leap.
- Every point of a path is used once, while the path is followed. Theirs may be stored and replayed.
- Warp layers have no batch norm; theirs begin with one by default.
- Warp layers are linear and initialised to the identity; together with the layers around them they are not
  linear.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.learner import MetaLearner, require_path
from pathaware.core.meta_gradient import MetaGradient
from pathaware.core.parameters import Layout
from pathaware.core.path import all_true_on_host, divergence_bound, on_host
from pathaware.core.settings import at_least, one_of
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method
from pathaware.models.surgery import LAYERS, identity_after, insert, inserted

PREFIX = "warp"

Start = Literal["maml", "query", "pull"]


def warped(model: nn.Module, *, kernel: int = 3) -> nn.Module:
    """Insert a layer `warp1`, `warp2`, … before every adapted layer but the first.

    So it follows the pooling, where images are small, and does not split blocks that the engine fuses.
    `kernel` is the size of warp layers that are convolutions.
    """
    at_least(1, kernel=kernel)
    if kernel % 2 == 0:
        raise UsageError(
            f"kernel: {kernel} is not allowed; must be an odd number, so that images keep their size"
        )
    after: dict[str, nn.Module] = {}
    before, features = "", None
    for name, child in model.named_children():
        inside = [module for module in child.modules() if isinstance(module, LAYERS)]
        if features is not None and (inside or isinstance(child, nn.Flatten)):
            after[before] = identity_after(features, kernel=kernel, bias=True)
            features = None
        before, features = name, inside[-1] if inside else features
    if not after:
        raise UsageError("model: it must have at least two layers, for a warp layer between them")
    return insert(model, PREFIX, after)


class Warped(GradientDescent):
    """Gradient descent of all layers but the warp layers."""

    def __init__(self, network: nn.Module, steps: int = 5, *, rate: float = 0.01) -> None:
        layout = Layout.of(network, adapted=lambda name: not inserted(PREFIX, name))
        super().__init__(layout, steps, rate=rate)
        if not any(inserted(PREFIX, name) for name, _ in network.named_parameters()):
            raise UsageError("it has no warp layers; insert them by warped(network)", field="network")

    def default_meta_gradient(self) -> MetaGradient:
        return WarpGrad()


class WarpGrad(MetaGradient):
    """∇L(φ), and a gradient for θ₀ from the objective that `start` names.

    `maml`: through the path, which must be kept in memory (the paper's Warp-MAML); `query`: the gradient of
    the query loss where tasks end (first-order MAML); `pull`: θ₀ − θₙ (Reptile).
    """

    head_start = False

    def __init__(self, *, start: Start = "maml") -> None:
        one_of(Start, start=start)
        self.start = start

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        learner = require_path(learner)
        x, y, query_x, query_y = episodes.tensors()
        adapted, shared = _split_parameters(learner)
        context = learner.context(x, y)
        differentiable, queries = replace(context, order="second"), learner.execution.prepare(query_x)
        bounds: list[Tensor] = []  # of each task's losses

        def warped_gradient(j: int, point: Tensor) -> tuple[Tensor, Tensor]:
            """Also adds ∇φ of the loss after this step, and frees its graph before the next step.

            With the guard, a task that has diverged before this step or by it adds nothing.
            """

            def after(descent: Tensor) -> Tensor:
                return learner.execution.query_losses(learner.rule.step(j, [here], descent), queries, query_y)

            with torch.enable_grad():
                here = point.detach().requires_grad_()
                losses, gradient = differentiable.gradient(here)
                query_losses = after(gradient)
                if learner.guard:
                    if not bounds:
                        bounds.append(divergence_bound(losses.detach()))
                    kept = torch.maximum(losses, query_losses).detach() <= bounds[0]  # False for NaN
                    if on_host(point) and not all_true_on_host(kept):
                        query_losses = after(torch.where(kept[:, None], gradient, 0))  # zero · ∞ is NaN
                    query_losses = torch.where(kept, query_losses, 0)
                (query_losses.sum() * (weight / learner.rule.steps)).backward(inputs=shared)
            return losses.detach(), gradient.detach()

        path = learner.unroll(context, learner.rule.steps, warped_gradient)
        if self.start == "maml":
            losses = learner.adapted_losses(episodes)
            (losses.sum() * weight).backward(inputs=adapted)
            return losses.detach()
        with torch.no_grad():
            path.losses.append(learner.losses_at(path.end, x, y))
        end = learner.end(path)
        losses, gradient = learner.gradient_at(end, query_x, query_y)
        meta_gradient = path.points[0] - end if self.start == "pull" else gradient
        learner.rule.layout.flatten(learner.model).backward(meta_gradient.sum(0) * weight)
        return losses.detach()


def _split_parameters(learner: MetaLearner) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters that adapt, and those that all tasks share."""
    names = {entry.name for entry in learner.rule.layout.entries}
    parts: tuple[list[Tensor], list[Tensor]] = ([], [])
    for name, parameter in learner.model.named_parameters():
        parts[name not in names].append(parameter)
    return parts


METHOD = Method(
    "warp-grad",
    "learns layers that precondition gradients",
    "Flennerhag, Rusu, Pascanu, Visin, Yin and Hadsell, ICLR 2020, arXiv:1909.00025",
    2020,
    Warped,
    meta_gradient=WarpGrad,
    network=warped,
)
