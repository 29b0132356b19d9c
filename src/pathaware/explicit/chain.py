"""Finds the explicit layers of a network, if it is a plain chain of known ones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import fx, nn

from pathaware.explicit.block import Block
from pathaware.explicit.dense import Flatten, Linear, ReLU, Smooth
from pathaware.explicit.layer import Layer
from pathaware.layout import Layout

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
    return Link(Block(kernel, padding, window, norm.eps), names)


def _one(size: Any) -> int | None:
    """The number that a size is in both directions, if there is one."""
    sides = set(size) if isinstance(size, tuple) else {size}
    (side, *others) = sides
    return side if not others and isinstance(side, int) else None


def _names(prefix: str, module: nn.Module) -> dict[str, str]:
    return {own: f"{prefix}.{own}" if prefix else own for own, _ in module.named_parameters(recurse=False)}
