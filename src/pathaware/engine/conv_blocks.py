"""Finds convolution → batch norm → ReLU → max-pool in a traced network, which kernels run as one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import fx, nn

from pathaware.engine import kernels
from pathaware.engine.batched.layers import Activations, Parameters


@dataclass(frozen=True)
class FusedBlock:
    """A convolution 3×3 with what follows it, by the names of its modules."""

    convolution: str
    norm: str
    eps: float
    reads: fx.Node
    first: bool

    def __call__(self, convolution: Parameters, norm: Parameters, x: Activations) -> Activations:
        from pathaware.engine.kernels import functions  # needs Triton

        weight, gamma, beta = convolution["weight"], norm["weight"], norm["bias"]
        if self.first:
            images = x.data.to(kernels.storage(weight))
            z = functions.Stem.apply(images, weight, gamma, beta, self.eps)
        else:
            last = x.last()
            z = functions.block(last.data, weight, gamma, beta, self.eps)
        return Activations(z, x.tasks, "last", dtype=x.dtype)


def find_fused_blocks(
    nodes: list[fx.Node], modules: dict[str, nn.Module]
) -> tuple[dict[fx.Node, FusedBlock], set[fx.Node]]:
    """Blocks by the node they end in, and the nodes inside of them."""
    ends: dict[fx.Node, FusedBlock] = {}
    inner: set[fx.Node] = set()
    for node in nodes:
        chain = _chain(node)
        if len(chain) < 4:
            continue
        pool, relu, norm, convolution = chain
        source = convolution.args[0] if convolution.args else None
        if (
            _pools(_module(pool, modules))
            and _rectifies(relu, modules)
            and _normalises(_module(norm, modules))
            and isinstance(source, fx.Node)
            and _convolves(_module(convolution, modules), first=source.op == "placeholder")
        ):
            eps: float = modules[str(norm.target)].eps  # type: ignore[assignment]
            first = source.op == "placeholder"
            ends[pool] = FusedBlock(str(convolution.target), str(norm.target), eps, source, first)
            inner.update((relu, norm, convolution))
    return ends, inner


def _chain(node: fx.Node) -> list[fx.Node]:
    """The node and up to three before it, each of which only the next one reads."""
    chain = [node]
    while len(chain) < 4 and len(chain[-1].args) > 0 and isinstance(chain[-1].args[0], fx.Node):
        before = chain[-1].args[0]
        if len(before.users) > 1:
            break
        chain.append(before)
    return chain


def _module(node: fx.Node, modules: dict[str, nn.Module]) -> nn.Module | None:
    return modules[str(node.target)] if node.op == "call_module" else None


def _rectifies(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return type(modules[str(node.target)]) is nn.ReLU
    return node.target in (F.relu, torch.relu, "relu")


def _pools(module: nn.Module | None) -> bool:
    return (
        type(module) is nn.MaxPool2d
        and (_pair(module.kernel_size), _pair(module.stride)) == ((2, 2), (2, 2))
        and (_pair(module.padding), _pair(module.dilation)) == ((0, 0), (1, 1))
        and not module.ceil_mode
    )


def _normalises(module: nn.Module | None) -> bool:
    return type(module) is nn.BatchNorm2d and module.affine


def _convolves(module: nn.Module | None, first: bool) -> bool:
    """Channels must be powers of two, for a program takes them whole; images have few."""
    if type(module) is not nn.Conv2d or module.groups != 1 or module.out_channels not in (16, 32, 64, 128):
        return False
    fits = module.in_channels <= 4 if first else module.in_channels in (16, 32, 64, 128)
    return (
        fits
        and (module.kernel_size, module.stride, module.dilation) == ((3, 3), (1, 1), (1, 1))
        and module.padding in ((1, 1), "same")
    )


def _pair(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value, value)
