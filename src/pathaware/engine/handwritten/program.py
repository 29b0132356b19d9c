"""Run a network as a chain of hand-written layers: losses, gradients and Hessian-vector products."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from pathaware.core.losses import Loss
from pathaware.core.parameters import Layout
from pathaware.core.path import being_traced, differentiable_once
from pathaware.engine.handwritten.conv_block import ConvBlock, PlainConvolution
from pathaware.engine.handwritten.layers import (
    HANDWRITTEN_LOSSES,
    Flatten,
    HandwrittenLoss,
    Layer,
    Linear,
    Parameters,
    ReLU,
    Saved,
    Smooth,
)
from pathaware.models.traced import ConvBlockNodes, TracedNetwork

LARGE = 10_000
"""Pixels per task from which tasks run one after another: the activations of one then fit in the processor's
cache, those of all do not."""

Result = TypeVar("Result")
Arguments = tuple[Any, ...]

_SMOOTH = (nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Softplus, nn.ELU, nn.LeakyReLU)


@dataclass(frozen=True)
class Link:
    """A layer, and the network's name for each of its parameters."""

    layer: Layer
    names: dict[str, str]


def find_chain(network: TracedNetwork, layout: Layout) -> list[Link] | None:
    """The network as a chain of hand-written layers, or None if some part of it has no hand-written form.

    The layout must be that of all parameters. A layer that is called twice and tied parameters are left to
    autograd.
    """
    nodes = _sequence(network)
    links = _links(network, nodes, any(type(network.module(node)) is nn.Flatten for node in nodes))
    names = sorted(name for link in links for name in link.names.values())
    return links if names == sorted(entry.name for entry in layout.entries) else None


def _sequence(network: TracedNetwork) -> list[fx.Node]:
    """The nodes of the modules that the network calls; empty if it does more than call one after another."""
    nodes = network.nodes
    chained = all(node.args == (before,) and not node.kwargs for before, node in pairwise(nodes))
    return nodes[1:-1] if chained and all(node.op == "call_module" for node in nodes[1:-1]) else []


def _links(network: TracedNetwork, nodes: list[fx.Node], images: bool) -> list[Link]:
    """Hand-written layers for the modules; empty if one of them has no hand-written form."""
    links: list[Link] = []
    blocks = {block.convolution: block for block in network.blocks.values() if _supported(block)}
    inside: set[fx.Node] = set()
    for node in nodes:
        module = network.modules[str(node.target)]
        if node in inside:
            continue
        if images and node in blocks:
            block = blocks[node]
            links.append(_block(network, block))
            inside |= {block.norm, block.relu, block.pool}
        elif type(module) is nn.Conv2d and images and _plain(module):
            kernel, padding = module.kernel_size[0], module.padding[0]
            assert isinstance(padding, int)
            links.append(Link(PlainConvolution(kernel, padding), network.names[str(node.target)]))
        elif type(module) is nn.Linear and not images:
            links.append(Link(Linear(), network.names[str(node.target)]))
        elif type(module) is nn.Flatten and images and (module.start_dim, module.end_dim) == (1, -1):
            links.append(Link(Flatten(), {}))
            images = False
        elif type(module) is nn.ReLU:
            links.append(Link(ReLU(), {}))
        elif type(module) in _SMOOTH:
            links.append(Link(Smooth(module), {}))
        else:
            return []
    return [] if images else links


def _supported(block: ConvBlockNodes) -> bool:
    """True if the hand-written layer computes this block: padding must be a number below the kernel size."""
    return isinstance(block.padding, int) and block.padding < block.kernel and block.pooling != "average"


def _plain(module: nn.Conv2d) -> bool:
    """True if the hand-written layer computes this convolution, which no batch norm and pooling follow."""
    (kernel, across), padding = module.kernel_size, module.padding
    square = kernel == across and isinstance(padding, tuple) and padding[0] == padding[1] < kernel
    usual = module.padding_mode == "zeros" and module.groups == 1
    return square and usual and module.stride == (1, 1) and module.dilation == (1, 1)


def _block(network: TracedNetwork, block: ConvBlockNodes) -> Link:
    assert isinstance(block.padding, int)
    norm, convolution = (network.names[str(node.target)] for node in (block.norm, block.convolution))
    names = {"gain": norm["weight"], "shift": norm["bias"], **convolution}
    layer = ConvBlock(block.kernel, block.padding, block.window, block.eps, block.frozen)
    return Link(layer, names)


MOST_THREADS = 2
"""More threads than this wait for Python's lock; PyTorch's own do not."""


class TaskThreads:
    """Threads that each run a group of tasks.

    PyTorch divides every operation among its threads, and each waits for the slowest. Operations of 100 µs
    gain little from that, and lose where other processes use the same cores. Groups of tasks need not wait
    for each other.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        # A new thread reads PyTorch's number of threads when it first needs it, and would forget its own.
        self.pool = ThreadPoolExecutor(count, initializer=torch.get_num_threads)

    def map(self, function: Callable[..., Result], groups: Sequence[Arguments]) -> list[Result]:
        """Call the function with the arguments of each group, without a graph."""
        threads = max(1, self.count // len(groups))

        def run(arguments: Arguments) -> Result:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            with torch.no_grad():
                return function(*arguments)

        return list(self.pool.map(run, groups))


_task_threads = lru_cache(TaskThreads)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_task_threads.cache_clear)  # threads do not survive a fork
_current: ContextVar[TaskThreads | None] = ContextVar("task_threads", default=None)


@contextmanager
def task_threads() -> Iterator[None]:
    """Run programs in as many `TaskThreads` as PyTorch has threads; its own operations then have one.

    Nothing changes where PyTorch has a single thread, or more than `MOST_THREADS`.
    """
    threads = torch.get_num_threads()
    if not 1 < threads <= MOST_THREADS or _current.get() is not None:
        yield
        return
    torch.set_num_threads(1)
    token = _current.set(_task_threads(threads))
    try:
        yield
    finally:
        _current.reset(token)
        torch.set_num_threads(threads)


def in_groups(function: Callable[..., Result], *tensors: Tensor, single: bool = False) -> list[Result]:
    """Call a function of tasks for each task if `single`, else for one group of tasks per thread."""
    threads, tasks = _current.get(), len(tensors[0])
    count = tasks if single else min(tasks, threads.count) if threads else 1
    if count == 1:
        return [function(*tensors)]
    return map_groups(function, list(zip(*(each.tensor_split(count) for each in tensors), strict=True)))


def map_groups(function: Callable[..., Result], groups: Sequence[Arguments]) -> list[Result]:
    """Call a function with the arguments of each group, in threads if there are any.

    What runs in another thread is not traced: a graph would hold its results as constants.
    """
    threads = _current.get()
    if threads is None or len(groups) == 1 or being_traced():
        return [function(*arguments) for arguments in groups]
    return threads.map(function, groups)


class Program:
    """Losses, gradients and Hessian-vector products of a chain, for all tasks at once and without a graph.

    `predict`, `losses`, `loss_and_gradient` and `hvp` return plain tensors; `differentiable_losses` and
    `differentiable_gradient` are single nodes of autograd's graph, differentiable once in the point. With
    `images` the inputs are `[T, N, C, H, W]`, else `[T, N, F]`.
    """

    def __init__(self, links: list[Link], loss: HandwrittenLoss, layout: Layout) -> None:
        self.links = links
        self.layers: list[Any] = [link.layer for link in links]
        self.images = any(isinstance(layer, Flatten) for layer in self.layers)
        self.loss = loss
        self.layout = layout
        entries = {
            entry.name: (i, entry.shape, len(entry.shape) == 1) for i, entry in enumerate(layout.entries)
        }
        owners = {name: (i, own) for i, link in enumerate(self.links) for own, name in link.names.items()}
        self.order = [owners[entry.name] for entry in layout.entries]
        self.entries = [[(own, *entries[name]) for own, name in link.names.items()] for link in self.links]

    def supports(self, point: Tensor, x: Tensor, y: Tensor) -> bool:
        """True if the program computes losses with these arguments, and their derivatives."""
        return self.supports_outputs(point, x) and not y.requires_grad and self.loss.supports(y)

    def supports_outputs(self, point: Tensor, x: Tensor) -> bool:
        """True if the program computes `outputs` with these arguments, and their derivatives.

        It runs on CPUs, and leaves derivatives with respect to the examples themselves to autograd.
        """
        plain = not (point.is_cuda or x.requires_grad or torch.is_autocast_enabled("cpu"))
        return plain and x.ndim == (5 if self.images else 3)

    def one_by_one(self, x: Tensor) -> bool:
        """True if tasks should run one after another for a loss and its gradient."""
        return self.images and x[0, :, 0].numel() >= LARGE

    def differentiable_gradient(self, point: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Losses `[T]` and gradients `[T, D]`, both differentiable once in the point."""
        both: tuple[Tensor, Tensor] = _Gradient.apply(point, self, x, y)
        return both

    def differentiable_losses(self, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Losses `[T]`, differentiable once in the point; their gradients are computed at the same time."""
        losses: Tensor = _Losses.apply(point, self, x, y)
        return losses

    def predict(self, point: Tensor, x: Tensor, support_x: Tensor | None = None) -> Tensor:
        """Outputs `[T, N, …]`, without a graph; with `support_x`, batch norm uses its statistics."""
        return _joined(in_groups(self._predict, point, x, *([] if support_x is None else [support_x])))

    def _predict(self, point: Tensor, x: Tensor, support: Tensor | None = None) -> Tensor:
        if self.images:
            x, support = self._images(x), None if support is None else self._images(support)
        for layer, own in zip(self.layers, self._by_layer(point), strict=True):
            x, support = layer.predict(own, x, support)
        return x

    def norm_statistics(self, point: Tensor, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """Mean and variance `[T, C]` of the inputs x at each batch norm, unless constant, by its name."""
        found: dict[str, tuple[Tensor, Tensor]] = {}
        x = self._images(x) if self.images else x
        for link, own in zip(self.links, self._by_layer(point), strict=True):
            if not isinstance(link.layer, ConvBlock) or link.layer.frozen is not None:
                x, _ = link.layer.predict(own, x, None)
                continue
            x, mean, variance = link.layer.predict_with_statistics(own, x)
            mean = mean.squeeze(1) + own["bias"] if "bias" in own else mean.squeeze(1)
            found[link.names["gain"].removesuffix(".weight")] = mean, variance.squeeze(1)
        return found

    def losses(self, point: Tensor, x: Tensor, y: Tensor, outputs: list[Tensor] | None = None) -> Tensor:
        """Losses `[T]`, without a graph. The outputs `[T, N, …]` are appended to `outputs`."""
        losses, predicted = zip(*in_groups(self._losses, point, x, y), strict=True)
        if outputs is not None:
            outputs.append(_joined(predicted))
        return _joined(losses)

    def _losses(self, point: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        predicted, _ = self.outputs(point, x)
        return self.loss.loss_and_gradient(predicted, y)[0], predicted

    def loss_and_gradient(
        self, point: Tensor, x: Tensor, y: Tensor, outputs: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor, list[Saved]]:
        """Losses `[T]` and gradients `[T, D]` without a graph, and for each group of tasks what each layer
        saved, then the loss.

        The outputs `[T, N, …]` are appended to `outputs`.
        """
        found = in_groups(self._loss_and_gradient, point, x, y)
        losses, gradients, saved, predicted = zip(*found, strict=True)
        if outputs is not None:
            outputs.append(_joined(predicted))
        return _joined(losses), _joined(gradients), [each for group in saved for each in group]

    def _loss_and_gradient(
        self, point: Tensor, x: Tensor, y: Tensor
    ) -> tuple[Tensor, Tensor, list[Saved], Tensor]:
        predicted, saved = self.outputs(point, x)
        losses, g, saved_by_loss = self.loss.loss_and_gradient(predicted, y)
        return losses, self.pull(point, g, saved), [*saved, saved_by_loss], predicted

    def hvp(self, point: Tensor, direction: Tensor, saved: list[Saved]) -> Tensor:
        """The Hessian of each task's loss at its point, times its direction: `[T, D]`."""
        length = len(self.links) + 1
        if len(saved) == length:
            return self._hvp(point, direction, saved)
        groups = [saved[i : i + length] for i in range(0, len(saved), length)]
        tasks = [len(group[0][0]) for group in groups]
        arguments = zip(point.split(tasks), direction.split(tasks), groups, strict=True)
        return _joined(map_groups(self._hvp, list(arguments)))

    def _hvp(self, point: Tensor, direction: Tensor, saved: list[Saved]) -> Tensor:
        with torch.inference_mode(not being_traced()):  # less overhead per operation
            d, tangents = self.push(point, direction, saved)
            products = self._pull_tangent(point, direction, saved, tangents, self.loss.hvp(saved[-1], d))
        return self._flat(products)

    def outputs(self, point: Tensor, x: Tensor) -> tuple[Tensor, list[Saved]]:
        """Outputs o `[T, N, …]` and what each layer saved. This and the next three have no groups of tasks;
        see `engine.handwritten.nodes` for the symbols."""
        saved: list[Saved] = []
        x = self._images(x) if self.images else x
        for layer, own in zip(self.layers, self._by_layer(point), strict=True):
            x, saved_by_layer = layer.forward(own, x)
            saved.append(saved_by_layer)
        return x, saved

    def pull(self, point: Tensor, cotangent: Tensor, saved: list[Saved]) -> Tensor:
        """Jᵀ c, `[T, D]`; adds to `saved` what the next two need."""
        p, g = self._by_layer(point), cotangent
        gradients: list[Parameters] = [{} for _ in p]
        for i in reversed(range(len(p))):
            g, gradients[i] = self.layers[i].backward(p[i], saved[i], g, i > 0)
        return self._flat(gradients)

    def push(self, point: Tensor, direction: Tensor, saved: list[Saved]) -> tuple[Tensor, list[Any]]:
        """J v `[T, N, …]`, and what each layer keeps of this pass."""
        tangents: list[Any] = []
        d: Any = None
        along = zip(self.layers, self._by_layer(point), self._by_layer(direction), saved, strict=False)
        for layer, p, v, saved_by_layer in along:
            d, tangent = layer.tangent(p, v, saved_by_layer, d)
            tangents.append(tangent)
        return d, tangents

    def pull_tangent(
        self, point: Tensor, direction: Tensor, saved: list[Saved], tangents: list[Any], dc: Tensor
    ) -> Tensor:
        """d(Jᵀ) c + Jᵀ dc, `[T, D]`."""
        return self._flat(self._pull_tangent(point, direction, saved, tangents, dc))

    def _pull_tangent(
        self, point: Tensor, direction: Tensor, saved: list[Saved], tangents: list[Any], d: Any
    ) -> list[Parameters]:
        p, v = self._by_layer(point), self._by_layer(direction)
        products: list[Parameters] = [{} for _ in p]
        for i in reversed(range(len(p))):
            d, products[i] = self.layers[i].hvp(p[i], v[i], saved[i], tangents[i], d, i > 0)
        return products

    def _images(self, x: Tensor) -> Tensor:
        """Images `[T, N, C, H, W]` in the layout of the first layer."""
        # a copy even of images with one channel: only its strides are those of channels last
        return x.movedim(2, -1).clone(memory_format=torch.contiguous_format)

    def _by_layer(self, point: Tensor) -> list[Parameters]:
        parts, tasks = point.split_with_sizes(self.layout.sizes, dim=-1), point.shape[0]
        return [
            {own: parts[i] if flat else parts[i].view(tasks, *shape) for own, i, shape, flat in entries}
            for entries in self.entries
        ]

    def _flat(self, by_layer: list[Parameters]) -> Tensor:
        return torch.cat([by_layer[i][own].flatten(1) for i, own in self.order], dim=1)


class _Gradient(torch.autograd.Function):
    """Losses and gradients as one node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, point: Tensor, program: Program, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        losses, gradient, saved = program.loss_and_gradient(point, x, y)
        ctx.program = program
        ctx.sizes = [len(tensors) for tensors in saved]
        # Autograd saves all of these, so that checkpointing can drop them. The gradient is not saved, to
        # leave its place in the processor's cache to the next step.
        ctx.save_for_backward(point, x, y, *(tensor for tensors in saved for tensor in tensors))
        ctx.set_materialize_grads(False)
        return losses, gradient

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, to_losses: Tensor | None, to_gradient: Tensor | None) -> Any:
        point, x, y, *flat = ctx.saved_tensors
        result = None
        if to_gradient is not None:
            tensors = iter(flat)
            saved = [[next(tensors) for _ in range(size)] for size in ctx.sizes]
            result = ctx.program.hvp(point, to_gradient, saved)
        if to_losses is not None:
            of_losses = to_losses.unsqueeze(1) * ctx.program.loss_and_gradient(point, x, y)[1]
            result = of_losses if result is None else result.add_(of_losses)
        return result, None, None, None


class _Losses(torch.autograd.Function):
    """Losses alone as one node of autograd's graph; only their gradient is saved."""

    @staticmethod
    def forward(ctx: Any, point: Tensor, program: Program, x: Tensor, y: Tensor) -> Tensor:
        def of_group(point: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return program.loss_and_gradient(point, x, y)[:2]

        found = in_groups(of_group, point, x, y, single=program.one_by_one(x))
        losses, gradients = zip(*found, strict=True)
        ctx.save_for_backward(_joined(gradients))
        return _joined(losses)

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, to_losses: Tensor) -> Any:
        (gradient,) = ctx.saved_tensors
        return to_losses.unsqueeze(1) * gradient, None, None, None


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def handwritten_program(network: TracedNetwork, layout: Layout, losses: Loss) -> Program | None:
    """The program of a network and a loss `[T]`, or None if some part of them has no hand-written form."""
    chain = find_chain(network, layout)
    loss = HANDWRITTEN_LOSSES.get(losses)
    return None if chain is None or loss is None else Program(chain, loss, layout)
