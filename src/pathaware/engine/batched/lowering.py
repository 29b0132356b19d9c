"""Turns a network into its batched form, by tracing it once with `torch.fx`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from pathaware.core.parameters import Layout
from pathaware.engine import kernels
from pathaware.engine.batched.layers import LAYERS, Activations, NotLowerable, Parameters, check
from pathaware.engine.conv_blocks import find_fused_blocks

_ELEMENTWISE = {F.relu, torch.relu, torch.tanh, torch.sigmoid, F.gelu, F.silu, F.elu, F.leaky_relu}
_ELEMENTWISE_METHODS = {"relu", "tanh", "sigmoid"}
_ADDITIONS = {operator.add, operator.iadd, torch.add}

# What `x.shape` and `x.shape[0]` stand for while a graph is interpreted. Only the flattening idiom
# `x.view(x.size(0), -1)` may use them: any other use of a shape would see the batched one.
_SHAPE, _COUNT = object(), object()


class _Tracer(fx.Tracer):
    """Stops at every module that has a batched form, and at all of `torch.nn`."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in LAYERS or super().is_leaf_module(m, module_qualified_name)


def lower(model: nn.Module, layout: Layout) -> Callable[[Tensor, Tensor], Tensor]:
    """A function (point `[T, D]`, inputs `[T, N, …]`) → outputs `[T, N, …]`.

    Raises `NotLowerable` if any part of the network has no batched form.
    """
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # fx raises errors of many kinds when it meets control flow
        raise NotLowerable(f"torch.fx cannot trace it: {str(error).splitlines()[0]}") from error
    if sum(node.op == "placeholder" for node in graph.nodes) != 1:
        raise NotLowerable("it takes more than one input")
    modules = dict(model.named_modules())
    for node in graph.nodes:
        if node.op == "call_module":
            check(modules[str(node.target)])
        elif node.op in ("call_function", "call_method"):
            _function(node)
        elif node.op == "get_attr":
            raise NotLowerable(f"{node.target} is used outside of a layer")
    return _Lowered(graph, modules, layout)


class _Lowered:
    """Interprets the traced graph with batched layers, or, where kernels can, whole blocks of layers."""

    def __init__(self, graph: fx.Graph, modules: dict[str, nn.Module], layout: Layout) -> None:
        self.nodes = list(graph.nodes)
        self.modules = modules
        self.layout = layout
        self.blocks, self.inside = find_fused_blocks(self.nodes, modules)
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

    def __call__(self, point: Tensor, inputs: Tensor) -> Tensor:
        tasks = len(point)
        parameters = self.layout.views(point)
        for name, value in self.shared.items():
            parameters[name] = value.expand(tasks, *value.shape)

        def own(prefix: str) -> Parameters:
            return {name: parameters[full] for name, full in self.names[prefix].items()}

        fused = bool(self.blocks) and kernels.usable(point) and not inputs.requires_grad
        values: dict[fx.Node, Any] = {}
        for node in self.nodes:
            if node.op == "placeholder":
                values[node] = Activations(inputs, tasks, dtype=point.dtype)
                continue
            if fused and node in self.inside:
                continue
            if fused and node in self.blocks:
                block = self.blocks[node]
                values[node] = block(own(block.convolution), own(block.norm), values[block.reads])
                continue
            arguments = fx.node.map_arg(node.args, values.__getitem__)
            if node.op == "output":
                result: Activations = arguments[0]
                return result.rows().data
            if node.op == "call_module":
                module = self.modules[str(node.target)]
                values[node] = LAYERS[type(module)](module, own(str(node.target)), arguments[0])
            else:
                values[node] = _function(node)(*arguments, **node.kwargs)
        raise AssertionError("a traced graph ends in its output")


def _function(node: fx.Node) -> Callable[..., Any]:
    """The batched form of a function or method call between layers."""
    target: Any = node.target
    if target in _ELEMENTWISE:
        # in-place would overwrite what the second derivative needs
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
