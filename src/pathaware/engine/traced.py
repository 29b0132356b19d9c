"""Trace a network once with `torch.fx`, and find its conv blocks for all back ends.

A conv block is a convolution, batch norm, ReLU and max-pool. The Triton kernels run it as one operation, and
the hand-written derivatives treat it as one layer.
"""

from __future__ import annotations

import copy
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn


class NotLowerable(Exception):
    """The network contains something that has no batched form; the message says what."""


@dataclass(frozen=True)
class ConvBlockNodes:
    """The nodes of a conv block; each is read by the next one only.

    Kernel, padding and pooling window are square, strides are 1 and the window's, dilation and groups are 1.
    `padding` is a number or one of PyTorch's names, such as "same".
    """

    convolution: fx.Node
    norm: fx.Node
    relu: fx.Node
    pool: fx.Node
    source: fx.Node
    inputs: int
    outputs: int
    kernel: int
    padding: int | str
    window: int
    eps: float

    @property
    def first(self) -> bool:
        """True if the block reads the network's input."""
        return self.source.op == "placeholder"


class TracedNetwork:
    """The graph of a network: its nodes in order, its modules by name, its conv blocks by their last node."""

    def __init__(self, graph: fx.Graph, modules: dict[str, nn.Module]) -> None:
        self.nodes = list(graph.nodes)
        self.modules = modules
        found = ((node, self._conv_block(node)) for node in self.nodes)
        self.blocks = {node: block for node, block in found if block is not None}

    def module(self, node: fx.Node) -> nn.Module | None:
        """The module that a node calls, if it calls one."""
        return self.modules[str(node.target)] if node.op == "call_module" else None

    def _conv_block(self, node: fx.Node) -> ConvBlockNodes | None:
        """The conv block that ends in this node, if there is one."""
        chain = _chain(node)
        if len(chain) < 5:
            return None
        source, convolution, norm, relu, pool = chain
        conv, batch_norm, max_pool = self.module(convolution), self.module(norm), self.module(pool)
        if not (
            type(conv) is nn.Conv2d
            and conv.stride == conv.dilation == (1, 1)
            and conv.groups == 1
            and conv.padding_mode == "zeros"
            and type(batch_norm) is nn.BatchNorm2d
            and batch_norm.affine
            and not batch_norm.track_running_stats
            and self._is_relu(relu)
            and type(max_pool) is nn.MaxPool2d
            and _side(max_pool.kernel_size) == _side(max_pool.stride)
            and (_side(max_pool.padding), _side(max_pool.dilation)) == (0, 1)
            and not (max_pool.ceil_mode or max_pool.return_indices)
        ):
            return None
        kernel, padding, window = _side(conv.kernel_size), _side(conv.padding), _side(max_pool.kernel_size)
        if kernel is None or padding is None or window is None:
            return None
        channels, eps = (conv.in_channels, conv.out_channels), batch_norm.eps
        return ConvBlockNodes(convolution, norm, relu, pool, source, *channels, kernel, padding, window, eps)

    def _is_relu(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return type(self.module(node)) is nn.ReLU
        return node.target in (F.relu, torch.relu, "relu")


def trace(model: nn.Module, leaves: Container[type[nn.Module]] = ()) -> TracedNetwork:
    """Trace `model`, down to the modules of `torch.nn` and those whose type is in `leaves`.

    Raises `NotLowerable` if `torch.fx` cannot trace it.
    """
    try:
        graph = _Tracer(leaves).record(model)
    except Exception as error:  # fx raises errors of many kinds when it meets control flow
        raise NotLowerable(f"torch.fx cannot trace it: {str(error).splitlines()[0]}") from error
    return TracedNetwork(graph, dict(model.named_modules()))


class _Tracer(fx.Tracer):
    """Traces a copy of a network in which leaf modules record their calls.

    `fx.Tracer.trace` replaces `nn.Module.__call__` while it runs. That breaks networks that other threads use
    meanwhile, so it is not called here.
    """

    def __init__(self, leaves: Container[type[nn.Module]]) -> None:
        super().__init__()
        self.leaves = leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in self.leaves or super().is_leaf_module(m, module_qualified_name)

    def record(self, model: nn.Module) -> fx.Graph:
        """The graph of `model`, called with one argument."""
        self.graph = fx.Graph()
        self.tensor_attrs = {}
        self.root = model
        names = {module: name for name, module in reversed(list(model.named_modules(remove_duplicate=False)))}
        copies: dict[nn.Module, nn.Module] = {}

        def copied(module: nn.Module) -> nn.Module:
            if module not in copies:
                new = copies[module] = copy.copy(module)
                if module is not model and self.is_leaf_module(module, names[module]):
                    new.__class__ = self._recording(module, names[module])
                else:
                    children = module._modules.items()
                    new._modules = {name: child and copied(child) for name, child in children}
            return copies[module]

        inputs = self.create_proxy("placeholder", "inputs", (), {})
        outputs = copied(model)(inputs)
        self.create_node("output", "output", (self.create_arg(outputs),), {})
        return self.graph

    def _recording(self, module: nn.Module, name: str) -> type[nn.Module]:
        """A subclass of the module's type whose instances record a call instead of computing it."""

        def call(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return self.create_proxy("call_module", name, args, kwargs)

        return type(type(module).__name__, (type(module),), {"__call__": call})


def _chain(node: fx.Node) -> list[fx.Node]:
    """Up to five nodes that end in `node`, each but the first read by the next one only."""
    chain = [node]
    while len(chain) < 5 and len(chain[0].args) > 0 and isinstance(chain[0].args[0], fx.Node):
        before = chain[0].args[0]
        if len(before.users) > 1 and len(chain) < 4:  # the source of a block may have other readers
            break
        chain.insert(0, before)
    return chain


def _side(size: Any) -> Any:
    """The value that a size has in both directions, or None if they differ."""
    if not isinstance(size, tuple):
        return size
    return size[0] if len(set(size)) == 1 else None
