"""A network as a chain of explicit layers: loss, slope, and the slope's derivative."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pathaware.explicit.chain import Chain, find_chain
from pathaware.explicit.heads import HEADS, Head
from pathaware.explicit.layer import Kept, Parameters
from pathaware.layout import Layout
from pathaware.losses import Loss
from pathaware.tracing import tracing


class Program:
    """Computes what an inner step needs of a network, for all tasks at once and without a graph."""

    def __init__(self, chain: Chain, head: Head, layout: Layout) -> None:
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
        both: tuple[Tensor, Tensor] = _Gradient.apply(point, self, x, y)  # type: ignore[no-untyped-call]
        return both

    def losses(self, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Losses `[T]`, differentiable once. Their slopes are taken on the way: for where they are needed."""
        losses: Tensor = _Losses.apply(point, self, x, y)  # type: ignore[no-untyped-call]
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

    def curvature(self, point: Tensor, direction: Tensor, kept: list[Kept]) -> Tensor:
        """The Hessian of each task's loss at its point, times its direction: `[T, D]`."""
        products: list[Parameters] = [{} for _ in self.links]
        with torch.inference_mode(not tracing()):  # spares every operation a look for a graph to join
            p, v = self._by_layer(point), self._by_layer(direction)
            seen: list[Any] = []
            d: Any = None
            for i, layer in enumerate(self.layers):
                d, found = layer.tangent(p[i], v[i], kept[i], d)
                seen.append(found)
            d = self.head.curve(kept[-1], d)
            for i in reversed(range(len(self.links))):
                d = self.layers[i].curve(p[i], v[i], kept[i], seen[i], d, products[i], i > 0)
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
            result = ctx.program.curvature(point, of_slope, kept)
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


def explicit_program(model: nn.Module, layout: Layout, losses: Loss) -> Program | None:
    """The program of a network and a loss `[T]`, or None where some part of them has no explicit form."""
    chain = find_chain(model, layout)
    head = HEADS.get(losses)
    return None if chain is None or head is None else Program(chain, head, layout)
