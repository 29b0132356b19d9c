"""Which entry of a flat vector belongs to which parameter, filter and layer of a network."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.nn.modules.batchnorm import _BatchNorm

from pathaware.core.errors import UsageError

Granularity = Literal["model", "layer", "tensor", "filter", "tensor-channel", "parameter"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Entry:
    """One parameter tensor: its name, its shape, the layer it is counted to.

    `channelled` says that its first axis runs over the filters of a convolution.
    """

    name: str
    shape: torch.Size
    layer: str
    channelled: bool

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def channels(self) -> Tensor:
        """For every element, its index along the first axis: `[numel]`."""
        first = self.shape[0] if self.shape else 1
        return torch.arange(first).repeat_interleave(self.numel // first)


class Layout:
    """The adapted parameters of a network as one flat vector of D entries.

    A point of a path is a tensor `[T, D]`, one row a task. A layer here is a convolution or linear
    module together with the normalisation that directly follows it.

    >>> layout = Layout.of(nn.Linear(2, 3))
    >>> len(layout), [e.name for e in layout.entries]
    (9, ['weight', 'bias'])
    """

    def __init__(self, entries: list[Entry]) -> None:
        self.entries = entries
        self.sizes = [e.numel for e in entries]

    @classmethod
    def of(cls, model: nn.Module, adapted: Callable[[str], bool] = lambda name: True) -> Layout:
        """Lay out every parameter that requires a gradient and whose name `adapted` accepts.

        What is left out stays shared by all tasks; if it requires a gradient it is meta-learned still.
        """
        entries: list[Entry] = []
        seen: set[int] = set()
        layer, width, convolutional = "", -1, False
        for module_name, module in model.named_modules():
            own = [(n, p) for n, p in module.named_parameters(recurse=False) if id(p) not in seen]
            if not own:
                continue
            joins = isinstance(module, NORMS) and all(p.shape == (width,) for _, p in own)
            if not joins:
                convolutional = isinstance(module, _CONVOLUTIONS)
                layer, width = module_name, own[0][1].shape[0] if own[0][1].ndim else -1
            channelled = convolutional if joins else isinstance(module, (*_CONVOLUTIONS, *NORMS))
            for name, parameter in own:
                seen.add(id(parameter))
                full = f"{module_name}.{name}" if module_name else name
                if parameter.requires_grad and adapted(full):
                    entries.append(Entry(full, parameter.shape, layer, channelled))
        if not entries:
            raise UsageError("model: it has no parameter that requires a gradient, so nothing can adapt")
        return cls(entries)

    def __len__(self) -> int:
        return sum(self.sizes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.entries == other.entries

    def __hash__(self) -> int:
        return hash(tuple(self.entries))

    @property
    def layers(self) -> list[str]:
        return list(dict.fromkeys(e.layer for e in self.entries))

    def flatten(self, model: nn.Module) -> Tensor:
        """The network's own parameters as one vector `[D]`, differentiable with respect to them."""
        parameters = dict(model.named_parameters())
        return torch.cat([parameters[e.name].reshape(-1) for e in self.entries])

    def views(self, point: Tensor) -> dict[str, Tensor]:
        """Name → parameter, as views of a point `[…, D]`; leading axes are kept."""
        lead = point.shape[:-1]
        parts = point.split_with_sizes(self.sizes, dim=-1)
        return {
            e.name: part if len(e.shape) == 1 else part.view(*lead, *e.shape)
            for e, part in zip(self.entries, parts, strict=True)
        }

    def index(self, granularity: Granularity) -> tuple[Tensor, int]:
        """For every entry of the flat vector, the coefficient it reads, `[D]`; and how many there are.

        | granularity | one coefficient for |
        |---|---|
        | `model`, `layer`, `tensor`, `parameter` | each of these |
        | `filter` | a convolution filter: its weights, bias, and its channel's norm gain and shift; \
                     and, as in the paper, every single parameter of a fully-connected layer |
        | `tensor-channel` | an output channel or unit, in each tensor by itself |
        """
        if granularity not in get_args(Granularity):
            raise UsageError(f"granularity: {granularity!r} is none of {', '.join(get_args(Granularity))}")
        first: dict[str, int] = {}
        parts, count = [], 0
        for entry in self.entries:
            owner, local = self._coefficients(entry, granularity)
            if owner not in first:
                first[owner] = count
                count += int(local.max()) + 1
            parts.append(first[owner] + local)
        return torch.cat(parts), count

    @staticmethod
    def _coefficients(entry: Entry, granularity: Granularity) -> tuple[str, Tensor]:
        """Who owns this tensor's coefficients, and which of them each element reads."""
        if granularity in ("model", "layer", "tensor"):
            owner = {"model": "", "layer": entry.layer, "tensor": entry.name}[granularity]
            return owner, torch.zeros(entry.numel, dtype=torch.long)
        if granularity == "tensor-channel":
            return entry.name, entry.channels()
        if granularity == "filter" and entry.channelled:
            return entry.layer, entry.channels()
        return entry.name, torch.arange(entry.numel)


class GroupBroadcast(nn.Module):
    """Lays coefficients `[…, groups]` out over the flat vector `[…, D]`; derivatives are for `[groups]`.

    `order` lists the entries of the vector group by group, `starts` where each group begins in it.
    """

    index: Tensor
    order: Tensor
    starts: Tensor

    def __init__(self, layout: Layout, granularity: Granularity) -> None:
        super().__init__()
        index, self.groups = layout.index(granularity)
        self.identity = self.groups == len(layout)
        self.sorted = bool((index.diff() >= 0).all())
        starts = torch.cat(
            [torch.zeros(1, dtype=torch.long), index.bincount(minlength=self.groups).cumsum(0)]
        )
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("order", index.argsort(stable=True), persistent=False)
        self.register_buffer("starts", starts, persistent=False)

    def forward(self, coefficients: Tensor) -> Tensor:
        if self.identity:
            return coefficients
        broadcast: Tensor = _Broadcast.apply(coefficients, self)
        return broadcast

    def sums(self, values: Tensor) -> Tensor:
        """Of the entries `[D]` of each group: `[groups]`."""
        ordered = values if self.sorted else values.index_select(0, self.order)
        return torch.segment_reduce(ordered, "sum", offsets=self.starts, unsafe=True)


class _Broadcast(Function):
    """Its derivative adds up group by group: PyTorch's own adds with atomics, slowly and in any order."""

    @staticmethod
    def forward(ctx: Any, coefficients: Tensor, groups: GroupBroadcast) -> Tensor:
        ctx.groups = groups
        return coefficients.index_select(-1, groups.index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _GroupSums.apply(gradient, ctx.groups), None


class _GroupSums(Function):
    """The derivative of `_Broadcast`, whose derivative is `_Broadcast`."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, groups: GroupBroadcast) -> Tensor:
        ctx.groups = groups
        return groups.sums(gradient)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Broadcast.apply(gradient, ctx.groups), None


# A network with other parameters, made five times faster than `deepcopy` does it.


def _own(value: Any) -> Any:
    """Containers are the twin's own: a hook that it is given must not fire in the model."""
    if not isinstance(value, (dict, list, set)):
        return value
    return copy.copy(value) if value else value.__class__()


def clone_with_parameters(model: nn.Module, values: dict[str, Tensor]) -> nn.Module:
    """A copy of the model that holds these values by name; no parameter or buffer is shared with the model.

    Unlike `deepcopy` it leaves alone what a module keeps besides tensors, submodules and containers of them.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    made: dict[int, Any] = {}  # by the id of the original, so that what was tied stays tied

    def parameter(original: nn.Parameter) -> nn.Parameter:
        value = values.get(names[id(original)], original)
        return nn.Parameter(value.detach().clone(), requires_grad=original.requires_grad)

    def module(original: nn.Module) -> nn.Module:
        new = original.__class__.__new__(original.__class__)
        new.__dict__ = {k: _own(v) for k, v in original.__dict__.items()}
        new._parameters = {k: once(v, parameter) for k, v in original._parameters.items()}
        new._buffers = {k: once(v, Tensor.clone) for k, v in original._buffers.items()}
        new._modules = {k: once(v, module) for k, v in original._modules.items()}
        return new

    def once(original: Any, make: Any) -> Any:
        if original is None:
            return None
        if id(original) not in made:
            made[id(original)] = make(original)
        return made[id(original)]

    return module(model)
