"""Turn a traced network into its batched form."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from pathaware.core.parameters import Layout
from pathaware.engine import kernels
from pathaware.engine.batched.layers import LAYERS, Activations, Parameters, check
from pathaware.engine.traced import ConvBlockNodes, NotLowerable, TracedNetwork

_ELEMENTWISE = {F.relu, torch.relu, torch.tanh, torch.sigmoid, F.gelu, F.silu, F.elu, F.leaky_relu}
_ELEMENTWISE_METHODS = {"relu", "tanh", "sigmoid"}
_ADDITIONS = {operator.add, operator.iadd, torch.add}

# Placeholders for `x.shape` and `x.shape[0]` while a graph is interpreted. Only the flattening idiom
# `x.view(x.size(0), -1)` may use them: any other use of a shape would see the batched one.
_SHAPE, _COUNT = object(), object()


def lower(network: TracedNetwork, layout: Layout) -> Lowered:
    """Turn the network into a function (point `[T, D]`, inputs `[T, N, …]`) → outputs `[T, N, …]`.

    Raises `NotLowerable` if any part of the network has no batched form.
    """
    if sum(node.op == "placeholder" for node in network.nodes) != 1:
        raise NotLowerable("it takes more than one input")
    for node in network.nodes:
        module = network.module(node)
        if module is not None:
            check(module)
        elif node.op in ("call_function", "call_method"):
            _function(node)
        elif node.op == "get_attr":
            raise NotLowerable(f"{node.target} is used outside of a layer")
    return Lowered(network, layout)


class Lowered:
    """Interprets a traced graph with batched layers; Triton kernels run `blocks` where they are usable."""

    def __init__(self, network: TracedNetwork, layout: Layout) -> None:
        self.network = network
        self.layout = layout
        self.blocks = {node: block for node, block in network.blocks.items() if _has_kernels(block)}
        self.fused = {n for b in self.blocks.values() for n in (b.convolution, b.norm, b.relu)}
        modules = network.modules
        adapted = {entry.name for entry in layout.entries}
        self.shared = {
            f"{prefix}.{name}": parameter
            for prefix, module in modules.items()
            for name, parameter in module.named_parameters(recurse=False)
            if f"{prefix}.{name}" not in adapted
        }
        self.names = {
            prefix: {name: f"{prefix}.{name}" for name, _ in module.named_parameters(recurse=False)}
            for prefix, module in modules.items()
        }

    def __call__(self, point: Tensor, inputs: Tensor, count: int | None = None) -> Tensor:
        """Outputs; with `count`, in the context `TaskStatistics(count=count)` and without gradients."""
        tasks = len(point)
        parameters = self.layout.views(point)
        for name, value in self.shared.items():
            parameters[name] = value.expand(tasks, *value.shape)

        def own(node: fx.Node) -> Parameters:
            return {name: parameters[full] for name, full in self.names[str(node.target)].items()}

        use_kernels = bool(self.blocks) and kernels.usable(point) and not inputs.requires_grad
        values: dict[fx.Node, Any] = {}
        for node in self.network.nodes:
            if node.op == "placeholder":
                values[node] = Activations(inputs, tasks, dtype=point.dtype)
                continue
            if use_kernels and node in self.fused:
                continue
            if use_kernels and node in self.blocks:
                block = self.blocks[node]
                values[node] = _run_kernels(
                    block, own(block.convolution), own(block.norm), values[block.source], count
                )
                continue
            arguments = fx.node.map_arg(node.args, values.__getitem__)
            if node.op == "output":
                result: Activations = arguments[0]
                return result.rows().data
            module = self.network.module(node)
            if module is not None:
                values[node] = LAYERS[type(module)](module, own(node), arguments[0])
            else:
                values[node] = _function(node)(*arguments, **node.kwargs)
        raise AssertionError("a traced graph ends in its output")


def _has_kernels(block: ConvBlockNodes) -> bool:
    """True if the Triton kernels compute this block.

    A program takes all channels at once, so their number must be a power of two; images have few.
    """
    channels = (16, 32, 64, 128)
    inputs = block.inputs <= 4 if block.first else block.inputs in channels
    square = block.kernel == 3 and block.padding in (1, "same") and block.window == 2
    return square and inputs and block.outputs in channels


def _run_kernels(
    block: ConvBlockNodes, convolution: Parameters, norm: Parameters, x: Activations, count: int | None
) -> Activations:
    """The block's output. The convolution's bias is left out, because batch norm subtracts it again.

    With `count`, batch norm uses the statistics of the first `count` images of each task.
    """
    from pathaware.engine.kernels import functions  # needs Triton

    weight, gamma, beta = convolution["weight"], norm["weight"], norm["bias"]
    images = x.data.to(kernels.storage(weight)) if block.first else x.last().data
    if count is not None:
        inductive = functions.inductive_stem if block.first else functions.inductive_block
        z = inductive(images, count, weight, gamma, beta, block.eps)
    elif block.first:
        z = functions.Stem.apply(images, weight, gamma, beta, block.eps)
    else:
        z = functions.block(images, weight, gamma, beta, block.eps)
    return Activations(z, x.tasks, "last", dtype=x.dtype)


def _function(node: fx.Node) -> Callable[..., Any]:
    """The batched form of a function or method call between layers."""
    target: Any = node.target
    if target in _ELEMENTWISE:
        # never in place, which would overwrite what the second derivative needs
        return lambda x, *args, inplace=False, **kwargs: x.map(target(x.data, *args, **kwargs))
    if target in _ELEMENTWISE_METHODS:
        return lambda x: x.map(getattr(x.data, target)())
    if target in _ADDITIONS and not node.kwargs and all(isinstance(a, fx.Node) for a in node.args):
        return _add
    if target in ("flatten", torch.flatten) and _is_full_flatten(node):
        return lambda x, *args, **kwargs: x.flat()
    if target is getattr and node.args[1] == "shape":
        return lambda x, name: _SHAPE
    if (target == "size" and node.args[1:] == (0,)) or (target is operator.getitem and node.args[1] == 0):
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
