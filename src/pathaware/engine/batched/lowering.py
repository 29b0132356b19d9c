"""Turn a traced network into its batched form."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from pathaware.core.parameters import Layout, parameters_lock
from pathaware.engine import kernels
from pathaware.engine.batched.convolutions import convolve, kind_of
from pathaware.engine.batched.layers import LAYERS, Activations, Parameters, check
from pathaware.models.traced import ADDITIONS, ConvBlockNodes, NotLowerable, TracedNetwork

_ELEMENTWISE = {F.relu, torch.relu, torch.tanh, torch.sigmoid, F.gelu, F.silu, F.elu, F.leaky_relu}
_ELEMENTWISE_METHODS = {"relu", "tanh", "sigmoid"}
_VIEWS = {"flatten", "view", "reshape", torch.flatten}
_VIEW_LAYERS = (nn.Flatten, nn.Identity, nn.Dropout)

# Placeholders for `x.shape` and `x.shape[0]` while a graph is interpreted. Only the flattening idiom
# `x.view(x.size(0), -1)` may use them: any other use of a shape would see the batched one.
_SHAPE, _COUNT = object(), object()


def lower(network: TracedNetwork, layout: Layout) -> Lowered:
    """Turn the network into a function (point `[T, D]`, inputs `[T, N, …]`) → outputs `[T, N, …]`.

    Raises `NotLowerable` if any part of the network has no batched form.
    """
    if sum(node.op == "placeholder" for node in network.nodes) != 1:
        raise NotLowerable("it takes more than one input")
    if not isinstance(network.nodes[-1].args[0], fx.Node):
        raise NotLowerable("it does not return one tensor")
    for node in network.nodes:
        module = network.module(node)
        if _overwrites(network, node):
            raise NotLowerable(f"{node.target} overwrites its input, which is read elsewhere")
        if module is not None:
            check(module)
            if node.kwargs or len(node.args) != 1:
                raise NotLowerable(f"{node.target} is called with more than one argument, or by keyword")
        elif node.op in ("call_function", "call_method"):
            _function(node)
        elif node.op == "get_attr":
            raise NotLowerable(f"{node.target} is used outside of a layer")
    return Lowered(network, layout)


@dataclass(frozen=True)
class Prepared:
    """Inputs of T tasks after all layers that no adapted parameter affects.

    Steps along a path then start from here. `values` are those that the rest of the network reads.
    """

    values: dict[fx.Node, Any]
    tasks: int


class Lowered:
    """Interprets a traced graph with batched layers; Triton kernels run `blocks` where they are usable."""

    def __init__(self, network: TracedNetwork, layout: Layout) -> None:
        self.network = network
        self.layout = layout
        self.blocks = {node: block for node, block in network.blocks.items() if _has_kernels(block)}
        self.fused = {node for block in self.blocks.values() for node in block.inner}
        adapted = {entry.name for entry in layout.entries}
        self.names = network.names
        self.shared: dict[str, tuple[dict[str, Any], str]] = {
            full: (network.modules[prefix]._parameters, name)
            for prefix, names in network.names.items()
            for name, full in names.items()
            if full not in adapted
        }
        self.prefix = self._prefix()
        self.norms, self.joins = network.activated_norms(), network.joins()

    def __call__(self, point: Tensor, inputs: Tensor | Prepared, count: int | None = None) -> Tensor:
        """Outputs; with `count`, in the context `TaskStatistics(count=count)` and without gradients."""
        parameters = self.layout.views(point)
        if isinstance(inputs, Prepared):
            values = dict(inputs.values)
            nodes = [node for node in self.network.nodes if node not in self.prefix]
            use_kernels = kernels.usable(point)
        else:
            values, nodes = self._start(inputs, point.dtype), self.network.nodes[1:]
            use_kernels = kernels.usable(point) and not inputs.requires_grad
        self._evaluate(nodes, values, parameters, len(point), use_kernels, count)
        result: Activations = values[self.network.nodes[-1]]
        return result.rows().data

    def features(self, point: Tensor, inputs: Tensor) -> Tensor:
        """Inputs of the last linear layer, `[T, N, F]`."""
        heads = [node for node in self.network.nodes if isinstance(self.network.module(node), nn.Linear)]
        values, before = self._start(inputs, point.dtype), self.network.nodes.index(heads[-1])
        use_kernels = kernels.usable(point) and not inputs.requires_grad
        nodes = self.network.nodes[1:before]
        self._evaluate(nodes, values, self.layout.views(point), len(point), use_kernels)
        result: Activations = values[heads[-1].all_input_nodes[0]]
        return result.flat().data

    def prepare(self, inputs: Tensor) -> Tensor | Prepared:
        """Pass the inputs through all layers that no adapted parameter affects."""
        if not self.prefix or inputs.requires_grad:
            return inputs
        values = self._start(inputs, inputs.dtype)
        nodes = [node for node in self.network.nodes[1:] if node in self.prefix]
        self._evaluate(nodes, values, {}, len(inputs), kernels.usable(inputs))
        read = {n for node in self.network.nodes if node not in self.prefix for n in node.all_input_nodes}
        return Prepared({node: value for node, value in values.items() if node in read}, len(inputs))

    def _start(self, inputs: Tensor, dtype: torch.dtype) -> dict[fx.Node, Any]:
        return {self.network.nodes[0]: Activations(inputs, len(inputs), dtype=dtype)}

    def _prefix(self) -> set[fx.Node]:
        """The nodes that no adapted parameter affects, the input included; empty if none has parameters."""
        found = {self.network.nodes[0]}
        for node in self.network.nodes[1:-1]:
            random = isinstance(self.network.module(node), nn.Dropout)  # each step draws its own
            if found.issuperset(node.all_input_nodes) and self._is_shared(node) and not random:
                found.add(node)
        for last, block in self.blocks.items():
            if last not in found:
                found -= block.inner
        return found if any(self.names[str(n.target)] for n in found if n.op == "call_module") else set()

    def shared_parameters(self) -> dict[str, Tensor]:
        """The parameters that do not adapt, by name, as they are now."""
        if not self.shared:
            return {}
        with parameters_lock(self.network.modules[""]):
            return {full: own[name] for full, (own, name) in self.shared.items()}

    def _is_shared(self, node: fx.Node) -> bool:
        """True if tasks share all parameters of this node."""
        return node.op != "call_module" or self.shared.keys() >= set(self.names[str(node.target)].values())

    def _evaluate(
        self,
        nodes: list[fx.Node],
        values: dict[fx.Node, Any],
        parameters: Parameters,
        tasks: int,
        use_kernels: bool,
        count: int | None = None,
    ) -> None:
        """Compute the values of these nodes, in order, from those of nodes before them."""

        shared = self.shared_parameters()

        def parameter(name: str) -> Tensor:
            if name in parameters:
                return parameters[name]
            value = shared[name]
            return value.expand(tasks, *value.shape)

        def own(node: fx.Node) -> Parameters:
            return {name: parameter(full) for name, full in self.names[str(node.target)].items()}

        constant = self._constant_moments(nodes) if use_kernels else {}
        joined: set[fx.Node] = set()
        fast = use_kernels and count is None
        for node in nodes:
            if use_kernels and node in self.fused:
                continue
            if use_kernels and node in self.blocks:
                block = self.blocks[node]
                moments = constant.get(node)
                values[node] = _run_kernels(
                    block, own(block.convolution), own(block.norm), values[block.source], count, moments
                )
                continue
            if fast and self._run_wide(node, values, own, joined):
                continue
            arguments: Any = fx.node.map_arg(node.args, values.__getitem__)
            module = self.network.module(node)
            if node.op == "output":
                values[node] = arguments[0]
            elif type(module) is nn.Conv2d and self._is_shared(node):
                values[node] = _shared_conv2d(module, arguments[0])
            elif module is not None:
                values[node] = LAYERS[type(module)](module, own(node), arguments[0])
            else:
                values[node] = _function(node)(*arguments, **node.kwargs)

    def _run_wide(
        self,
        node: fx.Node,
        values: dict[fx.Node, Any],
        own: Callable[[fx.Node], Parameters],
        joined: set[fx.Node],
    ) -> bool:
        """Run a node outside of the kernels' blocks with channels last, if it is one that gains from it.

        A norm and the activation after it are one operation, and so is the end of a residual block, whose sum
        waits in `joined` for the pool.
        """
        from pathaware.engine.kernels import functions  # needs Triton

        module = self.network.module(node)
        before = node.all_input_nodes[0] if node.all_input_nodes else node
        if type(module) is nn.Conv2d:
            shared = self._is_shared(node)
            kind = kind_of(module, shared=shared)
            if kind is None:
                return False
            x, p = values[before].last(padded=False), dict(module.named_parameters()) if shared else own(node)
            y, moments = convolve(x.data, p["weight"], p.get("bias"), kind)
            values[node] = replace(x, data=y, channels=module.out_channels, moments=moments)
        elif node in self.norms and values[before].layout == "last":
            x, p, last = values[before].last(padded=False), own(node), self.norms[node]
            slope = 1.0 if last is node else self.network.slope(last)
            settings = module.eps, slope, x.moments  # type: ignore[union-attr]
            y = functions.LeakyNorm.apply(x.data, p["weight"], p["bias"], *settings)
            values[node] = values[last] = x.map(y)
        elif node in self.norms.values() and node in values:
            pass
        elif any(node is total for _, total in self.joins.values()) and self._joinable(node, values):
            joined.add(node)
        elif before in joined:
            if node in self.joins:
                relu, total = self.joins[node]
                x, other = (value.last(padded=False) for value in _read(total, values))
                values[node] = x.map(functions.Join.apply(x.data, other.data, self.network.slope(relu)))
            else:
                joined.add(node)
        else:
            return False
        return True

    def _joinable(self, total: fx.Node, values: dict[fx.Node, Any]) -> bool:
        x, y = _read(total, values)
        return bool(x.layout == y.layout == "last" and x.data.shape == y.data.shape)

    def _constant_moments(self, nodes: list[fx.Node]) -> dict[fx.Node, Tensor]:
        """The statistics of blocks in which they are constant, as the kernels read them."""
        frozen = {node: block.frozen for node, block in self.blocks.items() if block.frozen is not None}
        wanted = [node for node in nodes if node in frozen]
        if not wanted:
            return {}
        from pathaware.engine.kernels.launch import constant_moments  # needs Triton

        statistics = [(frozen[node].running_mean, frozen[node].running_var) for node in wanted]
        return dict(zip(wanted, constant_moments(statistics), strict=True))


def _overwrites(network: TracedNetwork, node: fx.Node) -> bool:
    """True for an in-place operation whose input, or what that is a view of, is read by another one."""
    options = getattr(network.module(node), "inplace", False), *node.args[1:], node.kwargs.get("inplace")
    if node.target is not operator.iadd and not any(option is True for option in options):
        return False
    viewed = True
    while viewed:
        read = node.all_input_nodes[0]
        if any(user is not node and not _reads_shape(user) for user in read.users):
            return True
        viewed = read.target in _VIEWS or isinstance(network.module(read), _VIEW_LAYERS)
        node = read
    return False


def _reads_shape(node: fx.Node) -> bool:
    return node.target == "size" or (node.target is getattr and node.args[1] == "shape")


def _read(node: fx.Node, values: dict[fx.Node, Any]) -> list[Activations]:
    """The values that a function reads."""
    return [values[value] for value in node.args if isinstance(value, fx.Node)]


def _shared_conv2d(module: nn.Conv2d, x: Activations) -> Activations:
    """A convolution with the same filters for all tasks needs no groups.

    Grouped images `[N, T·C, H, W]` are also `[N·T, C, H, W]`, without a copy, here and for a norm after it.
    """
    images = x.images()
    data = images.data
    y = module(data.reshape(-1, module.in_channels, *data.shape[2:]))
    return images.map(y.reshape(len(data), -1, *y.shape[2:]))


def _has_kernels(block: ConvBlockNodes) -> bool:
    """True if the Triton kernels compute this block. The first block must end in a max-pool."""
    window = 1 if block.pooling == "none" else 2
    square = block.kernel == 3 and block.padding in (1, "same") and block.window == window
    pools = block.pooling == "max" or not block.first
    return square and pools and kernels.can_convolve(block.inputs, block.outputs, first=block.first)


def _run_kernels(
    block: ConvBlockNodes,
    convolution: Parameters,
    norm: Parameters,
    x: Activations,
    count: int | None,
    moments: Tensor | None,
) -> Activations:
    """The block's output. The convolution's bias is left out, because batch norm subtracts it again.

    With `moments`, batch norm uses these constant statistics; else, with `count`, those of the first `count`
    images of each task.
    """
    from pathaware.engine.kernels import functions  # needs Triton

    weight, gamma, beta = convolution["weight"], norm["weight"], norm["bias"]
    images = x.data.to(kernels.storage(weight)) if block.first else x.last().data
    norm_settings = weight, gamma, beta, block.eps
    count = None if moments is not None else count
    if block.first and count is not None:
        z = functions.inductive_stem(images, count, *norm_settings)
    elif block.first:
        z = functions.first_block(images, *norm_settings, moments)
    elif count is not None:
        z = functions.inductive_block(images, count, *norm_settings, block.pooling)
    else:
        z = functions.block(images, *norm_settings, block.pooling, moments)
    return Activations(z, x.tasks, "last", dtype=x.dtype, channels=block.outputs)


def _function(node: fx.Node) -> Callable[..., Any]:
    """The batched form of a function or method call between layers."""
    target: Any = node.target
    if any(isinstance(value, fx.Node) for value in node.kwargs.values()):
        raise NotLowerable(f"{target} is called with values by keyword")
    if target in _ELEMENTWISE:
        # never in place, which would overwrite what the second derivative needs
        def elementwise(x: Activations, *args: Any, inplace: bool = False, **kwargs: Any) -> Activations:
            return x.map(target(x.data, *(a for a in args if not isinstance(a, bool)), **kwargs))

        return elementwise
    if target in _ELEMENTWISE_METHODS:
        return lambda x: x.map(getattr(x.data, target)())
    if target in ADDITIONS and not node.kwargs and all(isinstance(a, fx.Node) for a in node.args):
        return _add
    if target in ("flatten", torch.flatten) and _is_full_flatten(node):
        return lambda x, *args, **kwargs: x.flat()
    if target is getattr and node.args[1] == "shape":
        return lambda x, name: _SHAPE
    first = target is operator.getitem and node.args[1] == 0 and _reads_shape(node.all_input_nodes[0])
    if first or (target == "size" and node.args[1:] == (0,)):
        return lambda x, index: _COUNT
    if target in ("view", "reshape") and node.args[2:] == (-1,) and isinstance(node.args[1], fx.Node):
        return lambda x, count, rest: x.flat()
    raise NotLowerable(f"no batched form of {node.op} {target}")


def _is_full_flatten(node: fx.Node) -> bool:
    start: Any = node.kwargs.get("start_dim", node.args[1] if len(node.args) > 1 else 0)
    return bool(start == 1) and len(node.args) < 3 and "end_dim" not in node.kwargs


def _add(x: Activations, y: Activations) -> Activations:
    if x.layout != y.layout:
        x, y = x.rows(), y.rows()
    return x.map(x.data + y.data)
