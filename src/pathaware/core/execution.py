"""How tasks run side by side: a network at T different points.

There are three ways to run a network: `loop`, `vmap` and `batched`. All take a point `[T, D]` and inputs
`[T, N, …]` and return outputs `[T, N, …]`, and agree to rounding. The first two are here and are the
reference; `batched` comes from the engine, which is optional.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args

import torch
from torch import Tensor, nn

from pathaware.core.batch_norm import TaskStatistics
from pathaware.core.errors import UsageError
from pathaware.core.losses import Loss, cross_entropy, mean_squared_error, per_task, per_task_loop
from pathaware.core.network_state import NetworkState
from pathaware.core.parameters import Layout
from pathaware.core.task_mapping import (
    Forward,
    Loop,
    MapOrLoop,
    features_of_task,
    map_tasks,
    outputs_of_task,
    refuse_direct_reads,
)

if TYPE_CHECKING:
    from pathaware.core.episodes import Episodes
    from pathaware.core.meta_gradient import MetaGradient
    from pathaware.core.path import Order
    from pathaware.core.rule import LinearSteps

ExecutionName = Literal["auto", "loop", "vmap", "batched"]
"""How tasks run side by side, see `select_execution`."""

Inputs = Any
"""Inputs `[T, N, …]` as they are, or as `Execution.prepare` returned them."""


class Unsupported(Exception):
    """The engine has no form of this network; the message says what is in the way."""


class Embedding(Protocol):
    """A network that all tasks share, in a faster form."""

    @property
    def whole(self) -> bool:
        """True if all its convolutions are faster."""

    def usable(self, x: Tensor) -> bool:
        """True if it can run these inputs and the network has not changed."""

    def __call__(self, x: Tensor) -> Tensor:
        """Features `[T, N, F]` of inputs `[T, N, …]`."""


Output = TypeVar("Output", covariant=True)


class CapturableStep(Protocol[Output]):
    """An optimiser step on the tasks or images that a plan selects.

    `step(plan, rate)` sets the learning rate and runs the step; `run(plan)` is the part that is captured.
    `changed` are all tensors that a step changes, apart from the optimiser's.
    """

    @property
    def changed(self) -> list[Tensor]: ...

    rate: Tensor
    optimizer: Any

    def __call__(self, plan: Any, rate: float) -> Output: ...

    def run(self, plan: Any) -> Output: ...


class Replay(Protocol[Output]):
    """An optimiser step that is replayed from a recording; `reset` makes the next call record again."""

    def __call__(self, plan: Any, rate: float) -> Output: ...

    def reset(self) -> None: ...


class Engine(Protocol):
    """The interface of a faster back end. `pathaware.engine.ENGINE` is one."""

    def execution(self, model: nn.Module, layout: Layout, loss: Loss) -> Execution:
        """The execution `batched`; raises `Unsupported`."""

    def embedding(self, model: nn.Module) -> Embedding | None:
        """A faster form of a network that all tasks share, if there is one."""

    def operation(self, name: str, like: Tensor) -> Callable[..., Any] | None:
        """A fused form of an operation in `core.operations` for tensors like this one, if there is one."""

    def captured(self, step: CapturableStep[Output]) -> Replay[Output]:
        """The step, replayed from a CUDA graph."""

    def compiled(self, order: Literal["second", "first"]) -> MetaGradient:
        """The meta-gradient `Unrolled`, compiled as a whole."""

    def has_compiler(self) -> bool:
        """True if `compiled` finds a compiler."""


@cache
def engine() -> Engine | None:
    """The engine, or None if `pathaware.engine` is not installed.

    It is loaded here only, and does not register itself: the numbers of a run must not depend on which
    modules were imported before.
    """
    if find_spec("pathaware.engine") is None:
        return None
    found: Engine = import_module("pathaware.engine").ENGINE
    return found


Step = TypeVar("Step", bound=CapturableStep[Any])


def captured(step: Step, capturable: bool) -> Step | Replay[Any]:
    """The step; if it is capturable and the engine is installed, replayed from a CUDA graph."""
    fast = engine() if capturable else None
    return step if fast is None else fast.captured(step)


class Execution:
    """Runs a network and its loss with a task axis, and differentiates the loss by autograd.

    `forward` maps a point and inputs to outputs, `losses` maps outputs and targets to one loss per task,
    `body` maps a point and inputs to the inputs of the last linear layer. `check` is called once, with a
    point and the outputs there. `chosen_for` and `state` are the layout, the loss and the state of the
    network for which this execution was chosen. An engine overrides what it computes faster.
    """

    program: Any = None
    """Hand-written derivatives of the network, if an engine has them."""

    @property
    def compilable(self) -> bool:
        """True if the meta-iteration is small enough for `torch.compile` to finish in a minute."""
        return False

    def __init__(
        self,
        name: str,
        forward: Forward,
        losses: Loss,
        chosen_for: tuple[Layout, Loss],
        state: NetworkState,
        body: Forward | None = None,
        check: Callable[[Tensor, Tensor], None] | None = None,
    ) -> None:
        self.name, self.forward, self.losses, self.body, self.check = name, forward, losses, body, check
        self.chosen_for, self.state = chosen_for, state

    def outdated(self, model: nn.Module, layout: Layout, loss: Loss) -> bool:
        """True if an execution for these must be chosen again."""
        before = self.chosen_for
        if layout is not before[0] or loss is not before[1] or self.state.changed(model):
            return True
        return self.losses in (mean_squared_error, cross_entropy) and per_task(loss) is not self.losses

    def task_threads(self) -> AbstractContextManager[None]:
        """Run groups of tasks in threads where that is faster."""
        return nullcontext()

    def predict(self, point: Tensor, x: Tensor, support_x: Tensor | None = None) -> Tensor:
        """Outputs at a point; with `support_x`, batch norm uses the statistics of the support set only."""
        if support_x is None:
            return self.forward(point, x)
        count, examples = support_x.shape[1], torch.cat([support_x, x], dim=1)
        with TaskStatistics(count=count):
            return self.forward(point, examples)[:, count:]

    def features(self, point: Tensor, x: Tensor) -> Tensor:
        """Inputs of the last linear layer at a point, `[T, N, F]`."""
        assert self.body is not None
        return self.body(point, x)

    def norm_statistics(self, point: Tensor, x: Tensor) -> dict[str, tuple[Tensor, Tensor]] | None:
        """Mean and variance `[T, C]` of the inputs x at each batch norm, by its name; None if not known."""
        return None

    def prepare(self, x: Tensor) -> Inputs:
        """Inputs for several calls of `gradient` and `losses_at`."""
        return x

    def losses_at(self, point: Tensor, x: Inputs, y: Tensor, outputs: list[Tensor] | None = None) -> Tensor:
        """The loss of each task at a point: `[T]`, differentiable any number of times.

        The outputs for x are appended to `outputs`, where they are known.
        """
        several = len(point) > 1
        predicted = None if several and self._one_by_one else self.forward(point, x)
        if predicted is None or (several and self._one_by_one):  # which the first pass may decide
            return self._losses_one_by_one(point, x, y, outputs)
        if self.check is not None and predicted.requires_grad:
            self.check(point, predicted)
            self.check = None
        if outputs is not None:
            outputs.append(predicted.detach())
        return self.losses(predicted, y)

    @property
    def _one_by_one(self) -> bool:
        return isinstance(self.forward, Loop | MapOrLoop) and self.forward.one_by_one

    def _losses_one_by_one(
        self, point: Tensor, x: Any, y: Tensor, outputs: list[Tensor] | None = None
    ) -> Tensor:
        """Each task's loss right after its forward pass: it may read what the network has kept of that."""
        seen: list[Tensor] = []
        tasks = zip(point.split(1), x.split(1), y.split(1), strict=True)
        losses = torch.cat([self.losses_at(*task, seen) for task in tasks])
        if outputs is not None:
            outputs.append(torch.cat(seen))
        return losses

    def query_losses(self, point: Tensor, x: Inputs, y: Tensor) -> Tensor:
        """`losses_at` fused with their gradient where that is faster; differentiable once."""
        return self.losses_at(point, x, y)

    def path_losses(
        self, theta: Tensor, steps: LinearSteps, episodes: Episodes, order: Order, *, guard: bool
    ) -> Tensor | None:
        """Query losses `[T]` after all steps of a path from θ₀ `[D]`, differentiable once; None if these are
        not computed at once here."""
        return None

    def gradient(
        self,
        point: Tensor,
        x: Inputs,
        y: Tensor,
        *,
        create_graph: bool = False,
        outputs: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Losses `[T]` at a point `[T, D]` and their gradients `[T, D]`.

        The outputs for x are appended to `outputs`, where they are known.
        """
        if not (create_graph and point.requires_grad):
            point = point.detach().requires_grad_()
        with torch.enable_grad():
            losses = self.losses_at(point, x, y, outputs)
            if not losses.requires_grad:
                raise UsageError(
                    "loss: it has no gradient; compute it from the outputs by PyTorch's operations, without "
                    "detach or NumPy"
                )
            (gradient,) = torch.autograd.grad(losses.sum(), point, create_graph=create_graph)
        return losses, gradient

    def passes(self, point: Tensor, *, create_graph: bool = False) -> Passes:
        """Passes through the network at a point, and the gradient of a function of their outputs."""
        return Passes(self, point, create_graph)

    def run(
        self, learner: nn.Module, function: Callable[..., Sequence[Tensor]], *arguments: Any
    ) -> Sequence[Tensor]:
        """`function(*arguments)`, a function of the learner, replayed from a recording where that is
        possible."""
        return function(*arguments)


class Passes:
    """Passes of several inputs through the network at a point `[T, D]`, and the gradient of a function of
    their outputs.

    `here` stands for the point in whatever else depends on it.
    """

    def __init__(self, execution: Execution, point: Tensor, create_graph: bool) -> None:
        self.execution, self.point, self.create_graph = execution, point, create_graph
        self.here = point.view_as(point)

    def predict(self, x: Inputs) -> Tensor:
        """Outputs for x."""
        return self.execution.forward(self.here, x)

    def gradient(self, value: Tensor) -> Tensor:
        """The gradient `[T, D]` of a sum over tasks, differentiable once if `create_graph` is set."""
        (found,) = torch.autograd.grad(value, self.here, create_graph=self.create_graph, allow_unused=True)
        return torch.zeros_like(self.point) if found is None else found


def select_execution(name: ExecutionName, model: nn.Module, layout: Layout, loss: Loss) -> Execution:
    """Choose how to run `model`, as it is now. `auto` takes the fastest that the model allows.

    - `loop`: one task after another. Works for every module; the reference in tests.
    - `vmap`: `torch.func.vmap`. Works for modules without data-dependent control flow.
    - `batched`: every layer lowered to one operation for all tasks. Works where the engine is installed and
      knows every layer; on a CPU, a plain chain of layers also has hand-written derivatives.
    """
    if name not in get_args(ExecutionName):
        raise UsageError(f"execution: {name!r} must be one of {', '.join(get_args(ExecutionName))}")
    if name in ("auto", "batched"):
        try:
            if (fast := engine()) is None:
                raise Unsupported("pathaware.engine is not installed")
            return fast.execution(model, layout, loss)
        except Unsupported as reason:
            if name == "batched":
                raise UsageError(f"execution: 'batched' cannot run this model ({reason}); use auto") from None
    state, given = NetworkState(model), (layout, loss)
    if name == "vmap" and state.backward_hooks:
        raise UsageError("execution: 'vmap' cannot run this model (it ignores backward hooks); use auto")
    outputs, features = outputs_of_task(model, layout), features_of_task(model, layout)
    check = partial(refuse_direct_reads, model, layout)
    if name == "loop" or state.backward_hooks:
        return Execution("loop", Loop(outputs), per_task_loop(loss), given, state, Loop(features), check)
    losses = per_task(loss)
    if name == "vmap":
        return Execution("vmap", map_tasks(outputs), losses, given, state, map_tasks(features), check)
    read = None if losses in (mean_squared_error, cross_entropy) else model
    return Execution("vmap", MapOrLoop(outputs, read), losses, given, state, MapOrLoop(features), check)
