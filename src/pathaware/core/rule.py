"""Update rules, which compute the next point from the path and the gradient, and the tasks they see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.meta_gradient import MetaGradient, Unrolled
from pathaware.core.parameters import GroupBroadcast, Layout
from pathaware.core.settings import at_least

if TYPE_CHECKING:
    from pathaware.core.execution import Inputs, Passes
    from pathaware.core.learner import MetaLearner
    from pathaware.core.path import Order

Allowed = Literal["more classes", "any shots", "values", "weights", "joint queries"]
"""The things that a rule or a head can do beyond the usual classification.

- `more classes` than in training; not if learned parameters are tied to class indices.
- `any shots`: classes with different numbers of examples; those of the label −1 are ignored.
- `values` to predict as well as classes.
- `weights` of the support examples, by which predictions can be differentiated (see `influence`).
- `joint queries`: adapt to all queries of a task (`Context.query_x`), where inference allows it.
"""

Memory = Any
"""State that a rule carries along a path: tensors or tuples of them, never changed in place."""


@dataclass(frozen=True)
class LinearSteps:
    """All n steps of a path, each linear in the gradient and earlier points, with the same coefficients for
    all tasks:

        θⱼ₊₁ = θⱼ − Qⱼ ∘ ∇L(θⱼ)                                 in general
        θⱼ₊₁ = (1 − P)(θⱼ − Qⱼ ∘ ∇L(θⱼ)) + P ∘ θₖ               where `skips` has j: (row of P, k)

    `q` is one constant for all steps, `[1, D]` or `[n, D]`; `p` is `[skips, D]`.
    """

    count: int
    q: float | Tensor
    p: Tensor | None = None
    skips: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Coefficient:
    """A learned tensor of a rule, as plots and a change of the number of classes see it.

    `groups` maps its rows to the flat vector, if groups of parameters share entries; `steps` are the steps
    that use each row, empty if one row serves all; `step_size` is the constant that multiplies a learned step
    size, which is scaled when the number of classes changes (see `change_ways`), or None for anything else.
    """

    groups: GroupBroadcast | None = None
    steps: Sequence[int] = ()
    step_size: float | None = None


MAX_STEPS = 10_000
"""Upper limit of the number of steps, because every point of a path is stored."""


class Rule(nn.Module):
    """One step of adaptation. Its learned coefficients Φ are ordinary parameters of this module.

    `layout` says which parameters of the network adapt and where they lie in the flat vector; `steps` is the
    number of steps that the rule is trained for. Subclasses define `step`; those that need more than the path
    and the gradient define `advance`, `begin` or `objective`.
    """

    allows: frozenset[Allowed] = frozenset({"more classes", "values", "weights"})
    curvature: ClassVar[bool] = False
    """True if steps ask for `Context.curvature` at the point of their gradient."""

    def __init__(self, network: nn.Module | Layout, steps: int) -> None:
        super().__init__()
        at_least(1, steps=steps)
        if steps > MAX_STEPS:
            raise UsageError(f"steps: {steps} is not allowed; must be at most {MAX_STEPS}")
        self.layout = network if isinstance(network, Layout) else Layout.of(network)
        self.steps = steps

    def begin(self, initial: Tensor, context: Context) -> tuple[Tensor, Memory]:
        """Return the first point of each path, `[T, D]`, and the initial memory.

        `initial` is θ₀ for each task. Most rules return it unchanged and have no memory.
        """
        return initial, None

    def advance(
        self, j: int, points: Sequence[Tensor], gradient: Tensor, losses: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        """Like `step`, for rules that need the losses `[T]` at θⱼ or memory; return the point and memory."""
        return self.step(j, points, gradient), memory

    def step(self, j: int, points: Sequence[Tensor], gradient: Tensor) -> Tensor:
        """θⱼ₊₁ from `points` = [θ₀ … θⱼ] and the gradient of the support loss at θⱼ, all `[T, D]`.

        `j` is `steps` or more only if the caller asked for more steps than the rule was trained for. Then the
        coefficients of the last trained step are used again.
        """
        raise NotImplementedError("a rule must define step or advance")

    def default_meta_gradient(self) -> MetaGradient:
        """The meta-gradient of a learner of this rule that is given no other."""
        return Unrolled()

    def linear_steps(self) -> LinearSteps | None:
        """The trained steps as coefficients, if these describe them completely; the engine can then run a
        whole path at once. Not used for a subclass that overrides `step`, `advance`, `begin` or `objective`
        but not this."""
        return None

    def coefficients(self) -> Mapping[str, Coefficient]:
        """Learned step sizes, and other coefficients that groups of parameters share, by name."""
        return {}

    def objective(self, j: int, point: Tensor, context: Context) -> tuple[Tensor, Tensor] | None:
        """Override the loss that step j descends: return the support loss `[T]`, which the divergence guard
        checks, and the loss to descend, `[T]`. None means that both are the support loss."""
        return None

    def class_blocks(self) -> Mapping[str, tuple[int, Sequence[int]]]:
        """Learned tensors in which classes are only a part of an axis. Maps each name to that axis and the
        sizes of the blocks along it. If the number of classes changes, `change_ways` converts each block by
        itself.
        """
        return {}


@dataclass(frozen=True)
class Context:
    """T tasks during their adaptation, as a rule sees them.

    `query_x` are all queries of each task, or None unless inference is `joint` (see `QueryLevel`); only rules
    that allow `joint queries` may use them. `order` is the order of derivatives that the meta-gradient needs.
    """

    learner: MetaLearner
    support_x: Tensor
    support_y: Tensor
    query_x: Tensor | None = None
    order: Order = "none"
    weights: Tensor | None = None
    """Weights `[T, S]` of the support examples, see `pathaware.inference.influence`; None means ones."""
    _shared: _Shared = field(default_factory=lambda: _Shared())

    def __len__(self) -> int:
        return len(self.support_x)

    def predict(self, point: Tensor, x: Tensor) -> Tensor:
        """Outputs of the network at a point `[T, D]` for inputs `[T, N, …]`."""
        shared = self._shared
        if shared.passes is None or point is not shared.passes.here:
            return self.learner.outputs_at(point, x)
        known = (self.support_x, shared.support), (self.query_x, shared.queries)
        found = (prepared for inputs, prepared in known if inputs is x and prepared is not None)
        return shared.passes.predict(next(found, x))

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each task: `[T]`."""
        return self.learner.execution.losses(outputs, targets)

    def gradient(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """The support loss `[T]` and its gradient `[T, D]`, differentiable if `order` is second."""
        if self.order != "second" and self.learner.rule.curvature:
            here, losses, gradient = self._with_graph(point)
            self._shared.kept = point, here, losses, gradient
            return losses.detach(), gradient.detach()
        execution, x = self.learner.execution, self._support
        if self.order != "none":
            return execution.gradient(point, x, self.support_y, create_graph=self.order == "second")
        seen: list[Tensor] = []
        both = execution.gradient(point, x, self.support_y, outputs=seen)
        self._shared.outputs.extend((point, outputs) for outputs in seen)
        return both

    def curvature(self, point: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The support loss `[T]` and the product v ↦ H v with its Hessian at a point; all other `[T, D]`.

        Only the products are computed if a rule with `curvature` has just asked for the gradient there.
        """
        kept = self._shared.kept
        known = kept is not None and kept[0] is point
        here, losses, gradient = kept[1:] if kept and known else self._with_graph(point)

        def product(v: Tensor) -> Tensor:
            (hvp,) = torch.autograd.grad(gradient, here, v, retain_graph=True)
            return hvp

        return losses.detach(), product

    def _with_graph(self, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The point as a leaf, and the loss and its gradient there."""
        with torch.enable_grad():
            here = point.detach().requires_grad_()
            found = self.learner.execution.gradient(here, self._support, self.support_y, create_graph=True)
            return here, *found

    @property
    def _support(self) -> Inputs:
        return self.support_x if self._shared.support is None else self._shared.support

    def support_losses(self, point: Tensor, outputs: list[Tensor] | None = None) -> Tensor:
        """The support loss `[T]` at a point; the outputs are appended to `outputs`, where they are known."""
        return self.learner.execution.losses_at(point, self._support, self.support_y, outputs)


@dataclass(frozen=True)
class WeightedContext(Context):
    """Tasks whose support examples have `weights [T, S]` in the loss that inner steps descend."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.weights is None or targets.shape != self.weights.shape:  # not the support set
            return super().losses(outputs, targets)
        each = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
        return (each.view(targets.shape) * self.weights).mean(1)

    def gradient(self, point: Tensor) -> tuple[Tensor, Tensor]:
        second = self.order == "second"
        with torch.enable_grad():
            here = point if second else point.detach().requires_grad_()
            losses = self.losses(self.predict(here, self.support_x), self.support_y)
            (gradient,) = torch.autograd.grad(losses.sum(), here, create_graph=second)
        return losses, gradient


@dataclass
class _Shared:
    """The things that the steps of one path share.

    - `support`, `queries`: the inputs as `Execution.prepare` returned them; None if they are not prepared.
    - `outputs`: points where the gradient was asked for, with the outputs for the support set there; for
      `order` none only.
    - `kept`: the last point where a rule with `curvature` asked for the gradient, the same point as a leaf,
      and the loss and the gradient with their graph.
    - `passes`: predictions at the point of the current step, from which its objective is computed.
    """

    support: Inputs | None = None
    queries: Inputs | None = None
    outputs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    kept: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    passes: Passes | None = None
