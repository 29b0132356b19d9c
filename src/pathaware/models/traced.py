"""Trace a network once with `torch.fx`, and find its conv blocks for all back ends.

A conv block is a convolution, batch norm, ReLU and, in most cases, a max-pool or average pool. The Triton
kernels run it as one operation, and the hand-written derivatives treat it as one layer.
"""

from __future__ import annotations

import copy
import operator
import random
from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from pathaware.core.batch_norm import FrozenBatchNorm
from pathaware.core.execution import Unsupported
from pathaware.core.network_state import BACKWARD_HOOKS, FORWARD_HOOKS, copied_attributes, hooks
from pathaware.core.parameters import first_names

Pooling = Literal["max", "average", "none"]

ADDITIONS = {operator.add, operator.iadd, torch.add}


class NotLowerable(Unsupported):
    """The network contains something that has no batched form; the message says what."""


@dataclass(frozen=True)
class ConvBlockNodes:
    """The nodes of a conv block; each is read by the next one only. Without pooling, `pool` is `relu`.

    Kernel, padding and pooling window are square, strides are 1 and the window's, dilation and groups are 1.
    `padding` is a number or one of PyTorch's names, such as "same". `frozen` is the norm, if its statistics
    are constant; then the convolution has no bias.
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
    pooling: Pooling
    frozen: FrozenBatchNorm | None

    @property
    def inner(self) -> set[fx.Node]:
        """All nodes but the last one."""
        return {self.convolution, self.norm, self.relu} - {self.pool}

    @property
    def first(self) -> bool:
        """True if the block reads the network's input."""
        return self.source.op == "placeholder"


class TracedNetwork:
    """The graph of a network: its nodes in order, its modules by name, its conv blocks by their last node.

    `names` are the network's names for the parameters of each module, see `first_names`. `read_training` are
    the modules whose own code depends on `training`; layers that a node calls look at theirs in every call.
    """

    def __init__(
        self, graph: fx.Graph, modules: dict[str, nn.Module], read_training: Container[nn.Module] = ()
    ) -> None:
        self.nodes = list(graph.nodes)
        self.modules = modules
        self.read_training = read_training
        self.names = first_names(modules[""])
        pooled = {node: block for node in self.nodes if (block := self._pooled_block(node)) is not None}
        taken = {block.relu for block in pooled.values()}
        plain = {
            node: block
            for node in self.nodes
            if node not in taken and (block := self._block(_chain(node, 4), node, 1, "none")) is not None
        }
        self.blocks: dict[fx.Node, ConvBlockNodes] = pooled | plain

    def module(self, node: fx.Node) -> nn.Module | None:
        """The module that a node calls, if it calls one."""
        return self.modules[str(node.target)] if node.op == "call_module" else None

    def _pooled_block(self, node: fx.Node) -> ConvBlockNodes | None:
        """The conv block that ends in this pooling node, if there is one."""
        pool = self.module(node)
        if (window := _window(pool)) is None:
            return None
        kind: Pooling = "max" if type(pool) is nn.MaxPool2d else "average"
        return self._block(_chain(node, 5)[:4], node, window, kind)

    def _block(
        self, chain: list[fx.Node], last: fx.Node, window: int, pooling: Pooling
    ) -> ConvBlockNodes | None:
        """The conv block of a source, a convolution, a norm and a ReLU, if that is what the nodes are."""
        if len(chain) < 4:
            return None
        source, convolution, norm, relu = chain
        conv, batch_norm = self.module(convolution), self.module(norm)
        frozen = batch_norm if type(batch_norm) is FrozenBatchNorm else None
        if not (
            type(conv) is nn.Conv2d
            and conv.stride == conv.dilation == (1, 1)
            and conv.groups == 1
            and conv.padding_mode == "zeros"
            and (_has_batch_statistics(batch_norm) if frozen is None else _is_plain(frozen, conv))
            and self._is_relu(relu)
        ):
            return None
        kernel, padding = _side(conv.kernel_size), _side(conv.padding)
        if kernel is None or padding is None:
            return None
        sizes = conv.in_channels, conv.out_channels, kernel, padding, window
        eps: Any = getattr(batch_norm, "eps", None)
        return ConvBlockNodes(convolution, norm, relu, last, source, *sizes, eps, pooling, frozen)

    def slope(self, node: fx.Node) -> float | None:
        """The `negative_slope` of the ReLU or leaky ReLU that a node is, or None if it is neither."""
        module = self.module(node)
        if self._is_relu(node):
            return 0.0
        if type(module) is nn.LeakyReLU:
            return module.negative_slope
        if node.target is F.leaky_relu:
            given: Any = node.kwargs.get("negative_slope", node.args[1] if len(node.args) > 1 else 0.01)
            return float(given)
        return None

    def activated_norms(self) -> dict[fx.Node, fx.Node]:
        """Every batch norm by batch statistics, and the leaky ReLU that alone reads it, else the norm."""
        norms = [node for node in self.nodes if _has_batch_statistics(self.module(node))]
        readers = {norm: next(iter(norm.users)) for norm in norms if len(norm.users) == 1}
        return {norm: r if (r := readers.get(norm)) and self.slope(r) is not None else norm for norm in norms}

    def joins(self) -> dict[fx.Node, tuple[fx.Node, fx.Node]]:
        """Max-pools 2×2 of a leaky ReLU of a sum, as residual blocks end, with the ReLU and the sum."""
        found = {}
        for node in self.nodes:
            pool, chain = self.module(node), _chain(node, 3)
            if type(pool) is not nn.MaxPool2d or _window(pool) != 2 or len(chain) < 3:
                continue
            total, relu, _ = chain
            alone = len(total.users) == len(relu.users) == 1
            if alone and (slope := self.slope(relu)) is not None and slope >= 0 and _is_sum(total):
                found[node] = relu, total
        return found

    def _is_relu(self, node: fx.Node) -> bool:
        if node.op == "call_module":
            return type(self.module(node)) is nn.ReLU
        return node.target in (F.relu, torch.relu, "relu")


def trace(model: nn.Module, leaves: Container[type[nn.Module]] = ()) -> TracedNetwork:
    """Trace `model`, down to the modules of `torch.nn` and those whose type is in `leaves`.

    Raises `NotLowerable` if `torch.fx` cannot trace it, or if a module does more than its type says. So does
    code that draws random numbers or changes the network: a graph would repeat what it did once.
    """
    if any(hooks([], *FORWARD_HOOKS, *BACKWARD_HOOKS)):
        raise NotLowerable("all modules have global hooks")
    for name, module in model.named_modules():
        if any(vars(module).get(kind) for kind in (*FORWARD_HOOKS, *BACKWARD_HOOKS)):
            raise NotLowerable(f"{name or 'it'} has hooks")
        if "forward" in vars(module):
            raise NotLowerable(f"{name or 'it'} has a forward method of its own")
    try:
        with torch.enable_grad():
            tracer, random_before = _Tracer(leaves), _random_states()
            graph = tracer.record(model)
    except NotLowerable:
        raise
    except Exception as error:  # fx raises errors of many kinds when it meets control flow
        raise NotLowerable(f"torch.fx cannot trace it: {str(error).splitlines()[0]}") from error
    if _random_states() != random_before:
        raise NotLowerable("its code draws random numbers")
    return TracedNetwork(graph, dict(model.named_modules()), tracer.read_training)


def fold_biases(model: nn.Module) -> nn.Module:
    """Remove the biases of convolutions whose output only a `FrozenBatchNorm` reads, in place.

    The norm's mean changes instead, so the network computes the same; its shift can learn what the bias could
    have learned. A network that cannot be traced is left as it is.
    """
    try:
        network = trace(model, leaves=(FrozenBatchNorm,))
    except NotLowerable:
        return model
    for node in network.nodes:
        norm = network.module(node)
        convolution, *_ = _chain(node, 2)
        conv = network.module(convolution)
        if type(norm) is not FrozenBatchNorm or not isinstance(conv, nn.Conv2d) or conv.bias is None:
            continue
        if len(convolution.users) == 1 and _calls(network, conv) == 1:
            norm.running_mean = norm.running_mean - conv.bias.detach()
            norm.folded, conv.bias = f"{convolution.target}.bias", None
    return model


def _calls(network: TracedNetwork, module: nn.Module) -> int:
    """How many times the network calls a module."""
    return sum(network.module(node) is module for node in network.nodes)


class _Value(fx.Proxy):
    """A value while a network is traced. `fx.Proxy` would record `+=` as `+`."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})


class _Tracer(fx.Tracer):
    """Traces a copy of a network in which leaf modules record their calls.

    `fx.Tracer.trace` replaces `nn.Module.__call__` while it runs. That breaks networks that other threads use
    meanwhile, so it is not called here.
    """

    def __init__(self, leaves: Container[type[nn.Module]]) -> None:
        super().__init__()
        self.leaves = leaves
        self.modes = _modes()
        self.read_training: set[nn.Module] = set()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in self.leaves or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def create_proxy(self, kind: str, *args: Any, **kwargs: Any) -> fx.Proxy:
        if _modes() != self.modes:  # a graph does not contain them
            raise NotLowerable("a part of it runs without gradients or with autocast")
        proxy: fx.Proxy = super().create_proxy(kind, *args, **kwargs)
        return proxy

    def record(self, model: nn.Module) -> fx.Graph:
        """The graph of `model`, called with one argument."""
        self.graph = fx.Graph()
        self.tensor_attrs = {}
        names = {module: name for name, module in reversed(list(model.named_modules(remove_duplicate=False)))}
        copies: dict[nn.Module, nn.Module] = {}
        given: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}  # attributes, and a copy of them

        def copied(module: nn.Module) -> nn.Module:
            if module not in copies:
                new = copies[module] = copy.copy(module)
                if module is not model and self.is_leaf_module(module, names[module]):
                    new.__class__ = self._recording(module, names[module])
                else:
                    new.__class__ = self._watched(module)
                    children = module._modules.items()
                    new._modules = {name: child and copied(child) for name, child in children}
                    own = vars(new)
                    own.update(copied_attributes(own))
                    given[names[module]] = own, copied_attributes(own)
            return copies[module]

        self.root = copied(model)  # which constants are added to
        buffers = [(buffer, buffer._version) for buffer in model.buffers()]
        inputs = self.create_proxy("placeholder", "inputs", (), {})
        outputs = self.root(inputs)
        changed = [name for name, (own, before) in given.items() if not _is_same(own, before)]
        after = [(buffer, buffer._version) for buffer in model.buffers()]
        if changed or not _is_same(after, buffers):
            raise NotLowerable(f"the code of {(changed or [''])[0] or 'it'} changes attributes or buffers")
        self.create_node("output", "output", (self.create_arg(outputs),), {})
        return self.graph

    def _watched(self, module: nn.Module) -> type[nn.Module]:
        """A subclass of the module's type whose instances note that their code reads `training`."""

        def read(instance: nn.Module) -> bool:
            self.read_training.add(module)
            training: bool = vars(instance)["training"]
            return training

        def write(instance: nn.Module, training: bool) -> None:
            vars(instance)["training"] = training

        return type(type(module).__name__, (type(module),), {"training": property(read, write)})

    def _recording(self, module: nn.Module, name: str) -> type[nn.Module]:
        """A subclass of the module's type whose instances record a call instead of computing it."""

        def call(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return self.create_proxy("call_module", name, args, kwargs)

        return type(type(module).__name__, (type(module),), {"__call__": call})


def _is_same(value: Any, before: Any) -> bool:
    """True for the same object, and for a container of the same objects or a number or text that is equal.

    Values that are traced are not compared: that would be a part of the graph.
    """
    if value is before or type(value) is not type(before):
        return value is before
    if isinstance(value, dict):
        return value.keys() == before.keys() and all(_is_same(value[name], before[name]) for name in value)
    if isinstance(value, (list, tuple)):
        return len(value) == len(before) and all(map(_is_same, value, before))
    return isinstance(value, (bool, int, float, str, set)) and bool(value == before)


def _random_states() -> tuple[Any, ...]:
    """The states of the generators that a network's code may draw from."""
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    states = [state.numpy().tobytes() for state in (torch.get_rng_state(), *devices)]
    _, numbers, *position = np.random.get_state()  # noqa: NPY002
    return random.getstate(), np.asarray(numbers).tobytes(), *position, *states


def _modes() -> tuple[bool, ...]:
    """The modes of PyTorch that a network can set for a part of its forward pass."""
    return torch.is_grad_enabled(), *(torch.is_autocast_enabled(device) for device in ("cpu", "cuda"))


def _is_sum(node: fx.Node) -> bool:
    """True for the sum of two values."""
    values = [a for a in node.args if isinstance(a, fx.Node)]
    return node.target in ADDITIONS and len(values) == len(node.args) == 2 and not node.kwargs


def _has_batch_statistics(norm: nn.Module | None) -> bool:
    """True for a batch norm with gain and shift that normalises by the statistics of the batch."""
    return type(norm) is nn.BatchNorm2d and norm.affine and not norm.track_running_stats


def _is_plain(norm: FrozenBatchNorm, conv: nn.Conv2d) -> bool:
    """True for a norm with gain and shift after a convolution without bias, see `fold_biases`."""
    return norm.weight is not None and norm.bias is not None and conv.bias is None


def _window(pool: nn.Module | None) -> int | None:
    """The side of a pool's windows, if they are square and lie side by side; None for other modules."""
    if type(pool) is nn.MaxPool2d:
        plain = _side(pool.dilation) == 1 and not pool.return_indices
    elif type(pool) is nn.AvgPool2d:
        plain = pool.divisor_override is None
    else:
        return None
    window: int | None = _side(pool.kernel_size)
    side_by_side = window == _side(pool.stride) and _side(pool.padding) == 0 and not pool.ceil_mode
    return window if plain and side_by_side else None


def _chain(node: fx.Node, length: int) -> list[fx.Node]:
    """Up to `length` nodes that end in `node`, each but the first read by the next one only."""
    chain = [node]
    while len(chain) < length and len(chain[0].args) > 0 and isinstance(chain[0].args[0], fx.Node):
        before = chain[0].args[0]
        if len(before.users) > 1 and len(chain) < length - 1:  # the source of a block may have other readers
            break
        chain.insert(0, before)
    return chain


def _side(size: Any) -> Any:
    """The value that a size has in both directions, or None if they differ."""
    if not isinstance(size, tuple):
        return size
    return size[0] if len(set(size)) == 1 else None
