"""The execution `batched`: every layer lowered to one operation for all tasks.

Some networks also have programs that are faster than autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pathaware.core.batch_norm import TaskStatistics
from pathaware.core.episodes import Episodes
from pathaware.core.execution import Execution, Passes
from pathaware.core.losses import Loss, per_task
from pathaware.core.network_state import NetworkState
from pathaware.core.parameters import Layout
from pathaware.core.path import Order, autocasts, being_traced
from pathaware.core.rule import LinearSteps
from pathaware.engine import kernels
from pathaware.engine.batched import LAYERS, Lowered, Prepared, lower
from pathaware.engine.cuda_graph import CapturedCalls, captured_state
from pathaware.engine.handwritten import Program, handwritten_program, task_threads
from pathaware.engine.handwritten.whole_path import PathProgram, path_program
from pathaware.models.traced import NotLowerable, trace

if TYPE_CHECKING:
    from pathaware.engine.handwritten.nodes import SharedParameters
    from pathaware.engine.kernels.program import KernelProgram


@dataclass(frozen=True)
class PreparedImages:
    """Images `[T, N, C, H, W]`, and a program that has computed what does not change along a path."""

    images: Tensor
    program: Program


Inputs = Tensor | Prepared | PreparedImages
"""Inputs `[T, N, …]` as they are, or prepared for several steps."""

CAPTURED_ELEMENTS = 2**22
"""Largest number of input values of a call for which a CUDA graph pays; larger calls hide their launches."""


class BatchedExecution(Execution):
    """Runs a lowered network, and the hand-written programs that it has.

    A `program` computes gradients faster than autograd does; its counterpart on a GPU is `kernel_program`.
    Programs take points of all parameters; `shared` completes points where some parameters do not adapt.
    """

    forward: Lowered
    program: Program | None

    def __init__(
        self,
        forward: Lowered,
        losses: Loss,
        chosen_for: tuple[Layout, Loss],
        state: NetworkState,
        program: Program | None = None,
        shared: SharedParameters | None = None,
    ) -> None:
        super().__init__("batched", forward, losses, chosen_for, state)
        self.program, self.shared = program, shared

    @cached_property
    def calls(self) -> CapturedCalls:
        return CapturedCalls()

    @cached_property
    def kernel_program(self) -> KernelProgram | None:
        from pathaware.engine.kernels.program import kernel_program  # needs Triton

        return kernel_program(self.program)

    @cached_property
    def path_program(self) -> PathProgram | None:
        program = self.program
        return None if program is None or program.images else path_program(program)

    @property
    def compilable(self) -> bool:
        return self.program is not None and not self.program.images

    def task_threads(self) -> AbstractContextManager[None]:
        program = self.program  # threads are faster for hand-written programs of images on a CPU
        return task_threads() if program is not None and program.images else nullcontext()

    def predict(self, point: Tensor, x: Tensor, support_x: Tensor | None = None) -> Tensor:
        if (program := self._predicting(point, x)) is not None:
            return program.predict(self._complete(point), x, support_x)
        if support_x is None or torch.is_grad_enabled():
            with kernels.switched_off() if support_x is not None else nullcontext():
                return super().predict(point, x, support_x)
        count, examples = support_x.shape[1], torch.cat([support_x, x], dim=1)
        with TaskStatistics(count=count):
            return self.forward(point, examples, count)[:, count:]

    def features(self, point: Tensor, x: Tensor) -> Tensor:
        return self.forward.features(point, x)

    def norm_statistics(self, point: Tensor, x: Tensor) -> dict[str, tuple[Tensor, Tensor]] | None:
        program = self._predicting(point, x)
        return None if program is None else program.norm_statistics(self._complete(point), x)

    def prepare(self, x: Tensor) -> Inputs:
        # Layers that no adapted parameter affects run once; so does what the kernels need to know of images.
        prepared = self.forward.prepare(x) if isinstance(self.forward, Lowered) else x
        if isinstance(prepared, Prepared) or len(x) == 1 or x.ndim != 5 or x.requires_grad:
            return prepared
        if kernels.usable(x) and self.kernel_program is not None:
            return PreparedImages(x, self.kernel_program.prepare(x))
        return prepared

    def losses_at(self, point: Tensor, x: Inputs, y: Tensor, outputs: list[Tensor] | None = None) -> Tensor:
        program = None if torch.is_grad_enabled() else self._program(point, x, y)
        x = x.images if isinstance(x, PreparedImages) else x
        if program is not None and isinstance(x, Tensor):
            return program.losses(self._complete(point), x, y, outputs)
        return super().losses_at(point, x, y, outputs)

    def query_losses(self, point: Tensor, x: Inputs, y: Tensor) -> Tensor:
        program = self._program(point, x, y) if point.requires_grad else None
        images = x.images if isinstance(x, PreparedImages) else x
        if program is None or isinstance(images, Prepared):
            return self.losses_at(point, x, y)
        return program.differentiable_losses(self._complete(point), images, y)

    def path_losses(
        self, theta: Tensor, steps: LinearSteps, episodes: Episodes, order: Order, *, guard: bool
    ) -> Tensor | None:
        program = self.path_program
        if program is None or self.shared is not None or not torch.is_grad_enabled() or being_traced():
            return None
        if autocasts(theta):  # hand-written derivatives need one dtype
            return None
        if order == "none" or not program.supports(theta, episodes):
            return None
        return program.losses(theta, steps, episodes, order, guard=guard)

    def gradient(
        self,
        point: Tensor,
        x: Inputs,
        y: Tensor,
        *,
        create_graph: bool = False,
        outputs: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        program = self._program(point, x, y)
        x = x.images if isinstance(x, PreparedImages) else x
        if program is not None and isinstance(x, Tensor):
            if create_graph:
                losses, gradient = program.differentiable_gradient(self._complete(point), x, y)
                return losses, self._select(gradient)
            with torch.no_grad():
                losses, gradient = program.loss_and_gradient(self._complete(point), x, y, outputs)[:2]
                return losses, self._select(gradient)
        return super().gradient(point, x, y, create_graph=create_graph, outputs=outputs)

    def passes(self, point: Tensor, *, create_graph: bool = False) -> Passes:
        from pathaware.engine.handwritten.nodes import ProgramPasses  # few methods need it

        return ProgramPasses(self, point, create_graph)

    def run(
        self, learner: nn.Module, function: Callable[..., Sequence[Tensor]], *arguments: Any
    ) -> Sequence[Tensor]:
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        if not self._capturable(tensors):
            return function(*arguments)
        settings = [a for a in arguments if not isinstance(a, Tensor)]
        key = (function.__name__, *settings, captured_state(learner))
        return self.calls(key, partial(function, *settings), *tensors)

    def _complete(self, point: Tensor) -> Tensor:
        return point if self.shared is None else self.shared.complete(point)

    def _select(self, gradient: Tensor) -> Tensor:
        return gradient if self.shared is None else self.shared.select(gradient)

    def _capturable(self, tensors: Sequence[Tensor]) -> bool:
        return (
            all(t.is_cuda and not t.requires_grad for t in tensors)
            and sum(t.numel() for t in tensors) <= CAPTURED_ELEMENTS
            and not torch.is_grad_enabled()
            and not torch.is_autocast_enabled()
            and not torch.cuda.is_current_stream_capturing()
        )

    def _predicting(self, point: Tensor, x: Tensor) -> Program | None:
        """The hand-written program if it predicts: on a CPU, without a graph."""
        program = None if torch.is_grad_enabled() else self.program
        return program if program is not None and program.supports_outputs(point, x) else None

    def _program(self, point: Tensor, x: Inputs, y: Tensor) -> Program | None:
        if isinstance(x, Prepared):
            return None
        programs = [self.program]
        if kernels.usable(point):
            programs.append(x.program if isinstance(x, PreparedImages) else self.kernel_program)
        images = x.images if isinstance(x, PreparedImages) else x
        for program in programs:
            if program is not None and program.supports(point, images, y):
                return program
        return None


def batched_execution(model: nn.Module, layout: Layout, loss: Loss) -> BatchedExecution:
    """The execution `batched`; raises `NotLowerable`."""
    losses, network = per_task(loss), trace(model, leaves=LAYERS)
    forward = lower(network, layout)
    program, shared = _program(forward, Layout.of(model), losses)
    state = NetworkState(model, network)
    return BatchedExecution(forward, losses, (layout, loss), state, program, shared)


def _program(forward: Lowered, whole: Layout, losses: Loss) -> tuple[Program | None, SharedParameters | None]:
    """A program of the whole network, and what completes points where some parameters do not adapt.

    None where shared layers come first: these run once per path instead (`Lowered.prepare`).
    """
    layout = forward.layout
    adapted = {entry.name for entry in layout.entries}
    if adapted == {entry.name for entry in whole.entries}:
        return handwritten_program(forward.network, layout, losses), None
    in_order = [entry for entry in whole.entries if entry.name in adapted] == layout.entries
    program = handwritten_program(forward.network, whole, losses) if in_order and not forward.prefix else None
    if program is None:
        return None, None
    from pathaware.engine.handwritten.nodes import SharedParameters  # few methods need it

    return program, SharedParameters(layout, whole, forward.shared_parameters)


class FusedEmbedding:
    """Features `[T, N, F]` from a network that all tasks share, with its conv blocks on the kernels."""

    def __init__(self, lowered: Lowered, state: NetworkState) -> None:
        self.lowered, self.state = lowered, state

    @property
    def whole(self) -> bool:
        """True if the kernels run all convolutions."""
        network = self.lowered.network
        convolutions = [node for node in network.nodes if isinstance(network.module(node), nn.Conv2d)]
        return len(convolutions) == len(self.lowered.blocks)

    def usable(self, x: Tensor) -> bool:
        """True if the kernels run on these inputs, and the network is still the one that was lowered."""
        model = self.lowered.network.modules[""]
        return kernels.usable(x) and not x.requires_grad and not self.state.changed(model)

    def __call__(self, x: Tensor) -> Tensor:
        nothing_adapts = x.new_empty(len(x), 0)
        return self.lowered(nothing_adapts, x).flatten(2)


def fused_embedding(model: nn.Module) -> FusedEmbedding | None:
    """The fused form of a network, or None if it has none; nothing of the network adapts."""
    try:
        network = trace(model, leaves=LAYERS)
        lowered = lower(network, Layout([]))
    except NotLowerable:
        return None
    return FusedEmbedding(lowered, NetworkState(model, network)) if lowered.blocks else None
