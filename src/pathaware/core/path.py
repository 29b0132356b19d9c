"""The inner loop: unrolls an update rule into a path θ₀ → θ₁ → … → θₙ."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils.checkpoint import checkpoint as recompute_in_backward

from pathaware.core.errors import UsageError
from pathaware.core.parameters import Layout

if TYPE_CHECKING:
    from pathaware.core.rule import Memory, Rule

Order = Literal["second", "first", "none"]
"""Order of the meta-gradient: differentiate everything; all but the inner gradients; nothing."""
ORDERS: tuple[Order, ...] = get_args(Order)

Gradient = Callable[[int, Tensor], tuple[Tensor, Tensor]]
"""(step j, point `[T, D]`) → the support loss `[T]` and the gradient `[T, D]` that step j descends."""

DIVERGED = 10.0
"""A task takes no further step once its support loss exceeds its initial value by this factor, or, if that is
negative, has grown by nine times its magnitude."""


def check_order(order: str, known: tuple[Order, ...] = ORDERS) -> None:
    """Raise unless `order` is one of `known`; a misspelt order would silently act as another one."""
    if order not in known:
        raise UsageError(f"{order!r} must be one of {', '.join(known)}", field="order")


@dataclass
class Trajectory:
    """The points that T tasks visited, and their support losses.

    `points` holds θ₀ … θₙ, each `[T, D]`; `losses` the support loss at these points, each `[T]`, up to the
    last point where it was computed; `outputs` the network's outputs for the support set at all points, each
    `[T, S, …]`, or nothing if they are not known.
    """

    layout: Layout
    points: list[Tensor]
    losses: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)

    @property
    def end(self) -> Tensor:
        """The last point θₙ, `[T, D]`."""
        return self.points[-1]

    def parameters(self, j: int) -> dict[str, Tensor]:
        """The network's parameters at θⱼ by name, each with a leading task axis."""
        return self.layout.views(self.points[j])

    def reverted(self, j: int = -1) -> Tensor:
        """Mask `[T]` of the tasks whose support loss is larger at θⱼ than at θ₀."""
        return ~self._kept(j)

    def _kept(self, j: int) -> Tensor:
        return self.losses[j] <= self.losses[0]  # False for NaN

    def guarded(self, j: int = -1) -> Tensor:
        """The point where each task ends if it stops after step j, `[T, D]`.

        That is θⱼ, or, for a task that `reverted` marks, its best point so far. Descent with large learned
        step sizes diverges on a few tasks, and then without bound. A task whose loss has grown on the very
        examples it adapts to cannot have learned from them. All other tasks are returned unchanged, to the
        last bit.
        """
        return self._guarded(self.points, j)

    def best(self) -> tuple[Tensor, Tensor]:
        """The last point of each task, or that of its smallest loss if it has diverged, and the loss there.

        Shapes: `[T, D]` and `[T]`.

        For losses on different examples per point, where a larger loss alone does not mean divergence.
        """
        kept = self.losses[-1] <= divergence_bound(self.losses[0])  # False for NaN
        if all_true_on_host(kept):
            return self.end, self.losses[-1]
        losses = torch.stack(self.losses)
        last = len(self.points) - 1
        which = torch.where(kept, last, losses.nan_to_num(nan=torch.inf).argmin(0))
        point: Tensor = _Select.apply(which, *self.points)
        return point, losses.gather(0, which[None])[0]

    def guarded_outputs(self, j: int = -1) -> Tensor:
        """`outputs` at the point where each task ends if it stops after step j."""
        return self._guarded(self.outputs, j)

    def _guarded(self, values: list[Tensor], j: int) -> Tensor:
        """The values of each task at θⱼ, or at its best point so far if it is reverted."""
        kept = self._kept(j)
        if all_true_on_host(kept):
            return values[j]
        last = range(len(self.points))[j]
        best = torch.stack(self.losses[: last + 1]).nan_to_num(nan=torch.inf).argmin(0)
        chosen: Tensor = _Select.apply(torch.where(kept, last, best), *values[: last + 1])
        return chosen


def differentiable_once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the `backward` of a function that has no second derivative.

    A second derivative is then always an error. With PyTorch's `once_differentiable` it is zero, silently, if
    the first one began at a loss: `backward` is then given a constant.
    """

    @wraps(backward)
    def wrapped(ctx: Any, *gradients: Any) -> Any:
        with torch.no_grad():
            found = backward(ctx, *gradients)
        if not torch.is_grad_enabled():  # that is, without `create_graph`
            return found
        graph = torch.ones((), requires_grad=True)
        several = found if isinstance(found, tuple) else (found,)
        refused = [None if each is None else _NotAgain.apply(each, graph) for each in several]
        return tuple(refused) if isinstance(found, tuple) else refused[0]

    return wrapped


class _NotAgain(Function):
    """A gradient whose own derivative is an error."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, graph: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *unused: Tensor) -> Any:
        raise UsageError(
            "meta-gradient: it cannot be differentiated again here; with execution='loop' it can, if the "
            "network has no batch norm or layer norm (PyTorch's third derivatives of these are wrong)"
        )


class _Select(Function):
    """Row t of point `which[t]`. The derivative of indexing would sort and add, though no row repeats."""

    @staticmethod
    def forward(ctx: Any, which: Tensor, *points: Tensor) -> Tensor:
        ctx.save_for_backward(which)
        ctx.count = len(points)
        return torch.stack(points)[which, torch.arange(len(which), device=which.device)]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (which,) = ctx.saved_tensors
        tasks = torch.arange(len(which), device=which.device)
        parts = gradient.new_zeros(ctx.count, *gradient.shape).index_put((which, tasks), gradient)
        return None, *parts.unbind()


def unroll(
    rule: Rule,
    initial: Tensor,
    gradient: Gradient,
    steps: int,
    *,
    order: Order = "second",
    guard: bool = True,
    checkpoint: bool = False,
    memory: Memory = None,
) -> Trajectory:
    """Follow `rule` for `steps` steps from the points and the memory that `Rule.begin` returned.

    With `guard` a task that has diverged takes no further step: its loss would square with every step, and
    derivatives would overflow even though `Trajectory.guarded` reverts the task in the end. On a CPU a task
    whose gradient overflows stops, too, and leaves the meta-gradient of the others unchanged. On a GPU, where
    checking would be a sync, it may make the meta-gradient of the batch NaN; training then skips the step.

    With `checkpoint` the activations of each step are recomputed in the backward pass instead of stored; the
    result is the same to the last bit.
    """
    path = Trajectory(rule.layout, [initial])
    bounds: list[Tensor] = []  # of each task's support loss
    started: list[Tensor] = []  # the tasks whose first gradient is finite, if that is not true of all

    def step(
        j: int, points: list[Tensor], descent: Tensor, loss: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return check_points(rule.advance(j, points, descent, loss, memory), "advance", initial.shape)

    def advance(j: int, point: Tensor, memory: Memory) -> tuple[Tensor, Tensor, Memory]:
        points = path.points[: j + 1]
        loss, descent = gradient(j, point)
        below = loss.detach() <= bounds[0] if guard and j > 0 else None  # False for NaN
        if not guard or not on_host(point):
            following, memory = step(j, points, descent, loss, memory)
            return loss, following if below is None else torch.where(below[:, None], following, point), memory
        goes_on = _finite(loss, descent) if below is None else below & started[0] if started else below
        if all_true_on_host(goes_on):
            return loss, *step(j, points, descent, loss, memory)
        if j == 0:
            started[:] = [goes_on]
        each, used = goes_on[:, None], loss
        if order == "second":  # again, at θ₀ for tasks that stop: zero times infinity would be NaN
            used, descent = gradient(j, torch.where(each, point, path.points[0].detach()))
        descent, used = torch.where(each, descent, 0), torch.where(goes_on, used, 0)
        following, memory = step(j, points, descent, used, memory)
        return loss, torch.where(each, following, point), memory

    for j in range(steps):
        if order == "second" and checkpoint:
            result = recompute_in_backward(advance, j, path.end, memory, use_reentrant=False)
        else:
            result = advance(j, path.end, memory)
        loss, following, memory = result
        path.points.append(following.detach() if order == "none" else following)
        path.losses.append(loss.detach())
        if guard and j == 0:
            bounds.append(divergence_bound(path.losses[0]))
    return path


def check_points(found: object, method: str, shape: torch.Size) -> tuple[Tensor, Memory]:
    """The points `[T, D]` and the memory that a method of a rule returned; raise for anything else.

    Without this check a tensor with two rows would be unpacked into points and memory, and a single row would
    be broadcast to all tasks.
    """
    if not isinstance(found, tuple) or len(found) != 2:
        kind = type(found).__name__
        raise UsageError(f"{method} must return the points and the memory, got {kind}", field="rule")
    points, memory = found
    if not isinstance(points, Tensor) or points.shape != shape:
        kind = f"shape {list(points.shape)}" if isinstance(points, Tensor) else type(points).__name__
        by = "a step" if method == "advance" else method
        raise UsageError(f"{by} must return points of shape {list(shape)}, got {kind}", field="rule")
    return points, memory


def _finite(loss: Tensor, descent: Tensor) -> Tensor:
    """Mask `[T]` of the tasks with a finite loss and a gradient whose square does not overflow."""
    norms: Tensor = torch.linalg.vector_norm(descent.detach(), dim=1)
    return loss.detach().isfinite() & norms.isfinite()


def divergence_bound(initial: Tensor) -> Tensor:
    """The loss above which a task has diverged: a negative one may grow by as much as a positive one."""
    return torch.maximum(DIVERGED * initial, (2 - DIVERGED) * initial)


def being_traced() -> bool:
    """True while `make_fx` records operations; control flow must not depend on tensor values then."""
    return get_proxy_mode() is not None


def autocasts(values: Tensor) -> bool:
    """True if autocast chooses the dtype of each operation on the device of these values."""
    return torch.is_autocast_enabled(values.device.type)


def full_precision(values: Tensor) -> AbstractContextManager[None]:
    """A context without autocast on the device of these values: linear systems and hand-written derivatives
    need one dtype."""
    return torch.autocast(values.device.type, enabled=False) if autocasts(values) else nullcontext()


def on_host(values: Tensor) -> bool:
    """True if control flow may depend on tensor values: on CUDA that would be a sync."""
    return not values.is_cuda and not being_traced()


def all_true_on_host(tasks: Tensor) -> bool:
    """True if all tasks are flagged. On CUDA returns False without checking, to avoid a sync."""
    return on_host(tasks) and bool(tasks.all())
