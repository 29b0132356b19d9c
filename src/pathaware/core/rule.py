"""Update rules, which compute the next point from the path and the gradient, and the tasks they see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.meta_gradient import MetaGradient, Unrolled
from pathaware.core.parameters import GroupBroadcast, Layout
from pathaware.core.settings import at_least

if TYPE_CHECKING:
    from pathaware.core.execution import Inputs, Passes
    from pathaware.core.learner import MetaLearner
    from pathaware.core.path import Order

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


MAX_STEPS = 10_000
"""Upper limit of the number of steps, because every point of a path is stored."""


class Rule(nn.Module):
    """One step of adaptation. Its learned coefficients Φ are ordinary parameters of this module.

    `layout` says which parameters of the network adapt and where they lie in the flat vector; `steps` is the
    number of steps that the rule is trained for. Subclasses define `step`; those that need more than the path
    and the gradient define `advance`, `begin` or `objective`.
    """

    fixed_ways: ClassVar[bool] = False
    """True if learned parameters are tied to class indices, which rules out more classes than in training."""
    curvature: ClassVar[bool] = False
    """True if steps ask for `Context.curvature` at the point of their gradient."""
    sequential: ClassVar[bool] = False
    """True if predictions depend on the order of the support set."""

    step_sizes: Mapping[str, float] = {}
    """Learned step sizes by name, with the constant that multiplies them. They are scaled when the number of
    classes changes (see `change_ways`)."""
    weighable: bool = True
    """True if a step can be differentiated with respect to the weights of support examples, see
    `influence`."""
    joint: bool = False
    """True if steps use all queries of a task (`Context.query_x`), where inference allows it."""

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

    @property
    def known_steps(self) -> LinearSteps | None:
        """`linear_steps`, or None if a subclass overrides the steps but not `linear_steps`."""
        for cls in type(self).__mro__:
            if "linear_steps" in vars(cls):
                return self.linear_steps()
            if {"step", "advance", "begin", "objective"} & set(vars(cls)):
                return None
        return None

    def broadcasts(self) -> dict[str, GroupBroadcast]:
        """Coefficients that groups of parameters share, by name, with their mapping to the flat vector."""
        return {}

    def objective(self, j: int, point: Tensor, context: Context) -> tuple[Tensor, Tensor] | None:
        """Override the loss that step j descends: return the support loss `[T]`, which the divergence guard
        checks, and the loss to descend, `[T]`. None means that both are the support loss."""
        return None

    @property
    def descends_support_loss(self) -> bool:
        """True if `objective` is not overridden, so that inner gradients need no autograd."""
        return type(self).objective is Rule.objective

    def class_blocks(self) -> Mapping[str, tuple[int, Sequence[int]]]:
        """Learned tensors in which classes are only a part of an axis. Maps each name to that axis and the
        sizes of the blocks along it. If the number of classes changes, `change_ways` converts each block by
        itself.
        """
        return {}

    def coefficient_steps(self, name: str) -> Sequence[int]:
        """The step that uses each row of a coefficient in `broadcasts`; empty if one row serves all steps."""
        return ()


@dataclass(frozen=True)
class Context:
    """T tasks during their adaptation, as a rule sees them.

    `query_x` are all queries of each task, or None unless inference is `joint` (see `QueryLevel`); only rules
    with `joint` set may use them. `order` is the order of derivatives that the meta-gradient needs.
    """

    learner: MetaLearner
    support_x: Tensor
    support_y: Tensor
    query_x: Tensor | None = None
    order: Order = "none"
    prepared: Inputs | None = None
    """The support set as `Execution.prepare` returned it, if several steps share it."""
    outputs: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Points where `gradient` was asked for, and the outputs for the support set there; `order` none only."""
    weights: Tensor | None = None
    """Weights `[T, S]` of the support examples, see `pathaware.inference.influence`; None means ones."""
    prepared_queries: Inputs | None = None
    """`query_x` as `Execution.prepare` returned them."""
    kept: list[tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)
    """The last point where a rule with `curvature` asked for the gradient, the same point as a leaf, and the
    loss and the gradient with their graph."""
    passes: Passes | None = None
    """Predictions at the point of the current step, from which its objective is computed."""

    def __len__(self) -> int:
        return len(self.support_x)

    def predict(self, point: Tensor, x: Tensor) -> Tensor:
        """Outputs of the network at a point `[T, D]` for inputs `[T, N, …]`."""
        if self.passes is None or point is not self.passes.here:
            return self.learner.predict(point, x)
        known = (self.support_x, self.prepared), (self.query_x, self.prepared_queries)
        found = (prepared for inputs, prepared in known if inputs is x and prepared is not None)
        return self.passes.predict(next(found, x))

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each task: `[T]`."""
        return self.learner.execution.losses(outputs, targets)

    def gradient(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """The support loss `[T]` and its gradient `[T, D]`, differentiable if `order` is second."""
        x = self.support_x if self.prepared is None else self.prepared
        if self.order != "second" and self.learner.rule.curvature:
            self.kept[:] = [(point, *self._with_graph(point))]
            return self.kept[0][2].detach(), self.kept[0][3].detach()
        if self.order != "none":
            create_graph = self.order == "second"
            return self.learner.execution.gradient(point, x, self.support_y, create_graph=create_graph)
        seen: list[Tensor] = []
        both = self.learner.execution.gradient(point, x, self.support_y, outputs=seen)
        self.outputs.extend((point, outputs) for outputs in seen)
        return both

    def curvature(self, point: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The support loss `[T]` and the product v ↦ H v with its Hessian at a point; all other `[T, D]`.

        Only the products are computed if a rule with `curvature` has just asked for the gradient there.
        """
        known = [kept[1:] for kept in self.kept if kept[0] is point]
        here, losses, gradient = known[0] if known else self._with_graph(point)

        def product(v: Tensor) -> Tensor:
            (hvp,) = torch.autograd.grad(gradient, here, v, retain_graph=True)
            return hvp

        return losses.detach(), product

    def _with_graph(self, point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The point as a leaf, and the loss and its gradient there."""
        x = self.support_x if self.prepared is None else self.prepared
        with torch.enable_grad():
            here = point.detach().requires_grad_()
            return here, *self.learner.execution.gradient(here, x, self.support_y, create_graph=True)

    def task_losses(self, point: Tensor) -> Tensor:
        """The support loss `[T]` at a point."""
        x = self.support_x if self.prepared is None else self.prepared
        return self.learner.execution.task_losses(point, x, self.support_y)
