"""Losses written out: the loss of each task, its slope in the outputs, and how that slope turns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.autograd.function import once_differentiable

from pathaware.core.losses import Loss, cross_entropy, mean_squared_error
from pathaware.core.parameters import Layout
from pathaware.core.path import tracing
from pathaware.engine.handwritten.conv_block import ConvBlock
from pathaware.engine.handwritten.layers import Flatten, Kept, Layer, Linear, Parameters, ReLU, Smooth


class HandwrittenLoss(ABC):
    """The end of a program: outputs `[T, N, F]` and targets to losses `[T]`."""

    @abstractmethod
    def fits(self, targets: Tensor) -> bool:
        """Whether these are targets it can judge; what it cannot is left to autograd."""

    @abstractmethod
    def slope(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Kept]:
        """Losses `[T]`, their derivative in the outputs, and what `hvp` needs."""

    @abstractmethod
    def hvp(self, kept: Kept, d: Tensor) -> Tensor:
        """The derivative of that slope along a direction d of the outputs."""


class MeanSquaredError(HandwrittenLoss):
    def fits(self, targets: Tensor) -> bool:
        return targets.ndim == 3

    def slope(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Kept]:
        error = outputs - targets
        slope = error * _share(error)
        return torch.linalg.vecdot(error.flatten(1), slope.flatten(1)) / 2, slope, []

    def hvp(self, kept: Kept, d: Tensor) -> Tensor:
        return d * _share(d)


def _share(outputs: Tensor) -> float:
    return 2 / (outputs.shape[1] * outputs.shape[2])


class CrossEntropy(HandwrittenLoss):
    def fits(self, targets: Tensor) -> bool:
        labels = targets.ndim == 2 and targets.dtype == torch.long
        return labels and (tracing() or bool(targets.min() >= 0))  # below zero: to be ignored

    def slope(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Kept]:
        share = 1 / targets.shape[1]
        likelihood = outputs.softmax(-1)
        slope = likelihood * share
        slope.scatter_add_(-1, targets.unsqueeze(-1), slope.new_full((*targets.shape, 1), -share))
        return cross_entropy(outputs, targets), slope, [likelihood]

    def hvp(self, kept: Kept, d: Tensor) -> Tensor:
        (likelihood,) = kept
        moved = likelihood * d
        return torch.addcmul(moved, likelihood, moved.sum(-1, keepdim=True), value=-1) / d.shape[1]


HANDWRITTEN_LOSSES: dict[Loss, HandwrittenLoss] = {
    mean_squared_error: MeanSquaredError(),
    cross_entropy: CrossEntropy(),
}
"""By the loss of each task that autograd would differentiate."""


# Finds the explicit layers of a network, if it is a plain chain of known ones.


_SMOOTH = (nn.Tanh, nn.Sigmoid, nn.GELU, nn.SiLU, nn.Softplus, nn.ELU, nn.LeakyReLU)

Named = tuple[str, Any]


@dataclass(frozen=True)
class Link:
    """A layer, and which of the network's parameters it calls what."""

    layer: Layer
    names: dict[str, str]


@dataclass(frozen=True)
class Chain:
    """The links in order, and whether they start from images `[T, N, C, H, W]` or from rows `[T, N, F]`."""

    links: list[Link]
    images: bool


def find_chain(model: nn.Module, layout: Layout) -> Chain | None:
    """The chain of a network, or None if it is none of layers that this package knows.

    Parameters outside of the layout are shared and meta-learned through every inner gradient; only autograd
    follows that, and a layer that is called twice. Such networks have no explicit form.
    """
    modules = _sequence(model)
    images = any(type(module) is nn.Flatten for _, module in modules)
    links = _links(modules, images)
    names = sorted(name for link in links for name in link.names.values())
    return Chain(links, images) if names == sorted(entry.name for entry in layout.entries) else None


def _sequence(model: nn.Module) -> list[Named]:
    """The modules a network calls, if it does nothing else than to call one after the other."""
    try:
        nodes = list(fx.symbolic_trace(model).graph.nodes)
    except Exception:  # fx raises errors of many kinds when it meets control flow
        return []
    modules = dict(model.named_modules())
    chained = all(node.args == (before,) and not node.kwargs for before, node in pairwise(nodes))
    if not chained or any(node.op != "call_module" for node in nodes[1:-1]):
        return []
    return [(str(node.target), modules[str(node.target)]) for node in nodes[1:-1]]


def _links(modules: list[Named], images: bool) -> list[Link]:
    """Explicit layers for the modules; none if one of them has no explicit form."""
    links: list[Link] = []
    while modules:
        (name, module), *rest = modules
        block = _block(modules[:4]) if images else None
        if block is not None:
            links.append(block)
            rest = modules[4:]
        elif type(module) is nn.Linear and not images:
            links.append(Link(Linear(), _names(name, module)))
        elif type(module) is nn.Flatten and images and (module.start_dim, module.end_dim) == (1, -1):
            links.append(Link(Flatten(), {}))
            images = False
        elif type(module) is nn.ReLU:
            links.append(Link(ReLU(), {}))
        elif type(module) in _SMOOTH:
            links.append(Link(Smooth(module), {}))
        else:
            return []
        modules = rest
    return [] if images else links


def _block(modules: list[Named]) -> Link | None:
    """A block of these four modules, if they are one: convolution, batch norm, ReLU, max-pool."""
    if [type(module) for _, module in modules] != [nn.Conv2d, nn.BatchNorm2d, nn.ReLU, nn.MaxPool2d]:
        return None
    (conv_name, conv), (norm_name, norm), _, (_, pool) = modules
    kernel, padding, window = (_one(s) for s in (conv.kernel_size, conv.padding, pool.kernel_size))
    if kernel is None or padding is None or window is None:
        return None
    plain = (
        conv.stride == conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.padding_mode == "zeros"
        and padding < kernel
        and norm.affine
        and not norm.track_running_stats
        and window == _one(pool.stride)
        and (pool.padding, pool.dilation, pool.ceil_mode, pool.return_indices) == (0, 1, False, False)
    )
    if not plain:
        return None
    names = {"gain": f"{norm_name}.weight", "shift": f"{norm_name}.bias", **_names(conv_name, conv)}
    return Link(ConvBlock(kernel, padding, window, norm.eps), names)


def _one(size: Any) -> int | None:
    """The number that a size is in both directions, if there is one."""
    sides = set(size) if isinstance(size, tuple) else {size}
    (side, *others) = sides
    return side if not others and isinstance(side, int) else None


def _names(prefix: str, module: nn.Module) -> dict[str, str]:
    return {own: f"{prefix}.{own}" if prefix else own for own, _ in module.named_parameters(recurse=False)}


# A network as a chain of explicit layers: loss, slope, and the slope's derivative.


class Program:
    """Computes what an inner step needs of a network, for all tasks at once and without a graph."""

    def __init__(self, chain: Chain, head: HandwrittenLoss, layout: Layout) -> None:
        self.chain = chain
        self.links = chain.links
        self.layers: list[Any] = [link.layer for link in chain.links]
        self.images = chain.images
        self.head = head
        self.layout = layout
        entries = {
            entry.name: (i, entry.shape, len(entry.shape) == 1) for i, entry in enumerate(layout.entries)
        }
        self.plans = [[(own, *entries[name]) for own, name in link.names.items()] for link in self.links]

    def fits(self, point: Tensor, x: Tensor, y: Tensor, *, differentiable: bool) -> bool:
        """Whether the program serves these arguments, and derivatives of its results if they are wanted.

        A GPU has programs of its own; derivatives with respect to the examples themselves are autograd's."""
        constant = not (x.requires_grad or y.requires_grad)
        return not point.is_cuda and constant and x.ndim == (5 if self.images else 3) and self.head.fits(y)

    def gradient(self, point: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Losses `[T]` and slopes `[T, D]`, both differentiable once with respect to the point."""
        both: tuple[Tensor, Tensor] = _Gradient.apply(point, self, x, y)
        return both

    def losses(self, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Losses `[T]`, differentiable once. Their slopes are taken on the way: for where they are needed."""
        losses: Tensor = _Losses.apply(point, self, x, y)
        return losses

    def values(self, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Losses `[T]`, with nothing to differentiate."""
        return self.head.slope(self._forward(self._by_layer(point), x)[0], y)[0]

    def slope(self, point: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, list[Kept]]:
        """Losses, slopes, and what each layer kept (the last entry is the head's)."""
        p = self._by_layer(point)
        outputs, kept = self._forward(p, x)
        loss, of_outputs, remembered = self.head.slope(outputs, y)
        g: Any = of_outputs
        slopes: list[Parameters] = [{} for _ in self.links]
        for i in reversed(range(len(self.links))):
            g = self.layers[i].backward(p[i], kept[i], g, slopes[i], i > 0)
        return loss, self._flat(slopes), [*kept, remembered]

    def hvp(self, point: Tensor, direction: Tensor, kept: list[Kept]) -> Tensor:
        """The Hessian of each task's loss at its point, times its direction: `[T, D]`."""
        products: list[Parameters] = [{} for _ in self.links]
        with torch.inference_mode(not tracing()):  # spares every operation a look for a graph to join
            p, v = self._by_layer(point), self._by_layer(direction)
            seen: list[Any] = []
            d: Any = None
            for i, layer in enumerate(self.layers):
                d, found = layer.tangent(p[i], v[i], kept[i], d)
                seen.append(found)
            d = self.head.hvp(kept[-1], d)
            for i in reversed(range(len(self.links))):
                d = self.layers[i].hvp(p[i], v[i], kept[i], seen[i], d, products[i], i > 0)
        return self._flat(products)

    def _forward(self, p: list[Parameters], x: Tensor) -> tuple[Tensor, list[Kept]]:
        kept: list[Kept] = []
        if self.images:
            x = self._images(x)
        for layer, own in zip(self.layers, p, strict=True):
            x, remembered = layer.forward(own, x)
            kept.append(remembered)
        return x, kept

    def _images(self, x: Tensor) -> Tensor:
        """Images `[T, N, C, H, W]` as the first layer takes them."""
        return x.movedim(2, -1).contiguous()

    def _by_layer(self, point: Tensor) -> list[Parameters]:
        parts = point.split_with_sizes(self.layout.sizes, dim=-1)
        return [
            {own: parts[i] if flat else parts[i].view(len(point), *shape) for own, i, shape, flat in plan}
            for plan in self.plans
        ]

    def _flat(self, by_layer: list[Parameters]) -> Tensor:
        values = {
            link.names[own]: value
            for link, found in zip(self.links, by_layer, strict=True)
            for own, value in found.items()
        }
        rows = (values[entry.name] for entry in self.layout.entries)
        return torch.cat([row if row.ndim == 2 else row.flatten(1) for row in rows], dim=1)


class _Gradient(torch.autograd.Function):
    """The bridge to autograd: one node for a whole inner gradient."""

    @staticmethod
    def forward(ctx: Any, point: Tensor, program: Program, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loss, slope, kept = program.slope(point, x, y)
        ctx.program = program
        ctx.sizes = [len(remembered) for remembered in kept]
        # All of it goes through autograd's own store, so that checkpointing can drop it. The slope is not
        # kept: the next step takes its place in the processor's cache.
        ctx.save_for_backward(point, x, y, *(tensor for remembered in kept for tensor in remembered))
        ctx.set_materialize_grads(False)
        return loss, slope

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor | None, of_slope: Tensor | None) -> Any:
        point, x, y, *flat = ctx.saved_tensors
        result = None
        if of_slope is not None:
            tensors = iter(flat)
            kept = [[next(tensors) for _ in range(size)] for size in ctx.sizes]
            result = ctx.program.hvp(point, of_slope, kept)
        if of_loss is not None:
            step = of_loss.unsqueeze(1) * ctx.program.slope(point, x, y)[1]
            result = step if result is None else result.add_(step)
        return result, None, None, None


class _Losses(torch.autograd.Function):
    """The same for losses alone, of which only the slope need be kept."""

    @staticmethod
    def forward(ctx: Any, point: Tensor, program: Program, x: Tensor, y: Tensor) -> Tensor:
        losses, slope, _ = program.slope(point, x, y)
        ctx.save_for_backward(slope)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_losses: Tensor) -> Any:
        (slope,) = ctx.saved_tensors
        return of_losses.unsqueeze(1) * slope, None, None, None


def handwritten_program(model: nn.Module, layout: Layout, losses: Loss) -> Program | None:
    """The program of a network and a loss `[T]`, or None where some part of them has no explicit form."""
    chain = find_chain(model, layout)
    head = HANDWRITTEN_LOSSES.get(losses)
    return None if chain is None or head is None else Program(chain, head, layout)
