"""The parameters of a network as one flat vector, and coefficients that groups of them share."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from types import MethodType
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import Function
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from pathaware.core.batch_norm import FrozenBatchNorm
from pathaware.core.errors import UsageError
from pathaware.core.settings import one_of

Granularity = Literal["model", "layer", "tensor", "filter", "tensor-channel", "parameter"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_REFERRING = (list, tuple, dict, MethodType, partial)
_TABLES = {"_parameters", "_buffers", "_modules"}
NORMS = (_BatchNorm, FrozenBatchNorm, nn.GroupNorm, nn.LayerNorm)

_locks: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_locks.clear)  # a thread that held one does not survive a fork


def parameters_lock(model: nn.Module) -> Any:
    """The lock to hold while a network's parameters are replaced, or read by name.

    `functional_call` puts other tensors into the network itself, where all threads see them.
    """
    return _locks.setdefault(model, threading.RLock())


def first_names(model: nn.Module) -> dict[str, dict[str, str]]:
    """For each module by its name, the network's name for each of its parameters.

    A tied parameter has several names, and a module too. Only the first one is used, as in `Layout`.
    """
    with parameters_lock(model):
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        return {
            prefix: {name: names[id(p)] for name, p in module._parameters.items() if p is not None}
            for prefix, module in model.named_modules()
        }


class CallWithParameters:
    """Calls a network with other parameter values, by the names in `first_names`, and leaves it unchanged.

    `functional_call` by itself replaces the parameters of a module that has two names twice, and restores the
    replacements.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.names = {
            f"{prefix}.{name}".lstrip("."): full
            for prefix, names in first_names(model).items()
            for name, full in names.items()
        }

    def __call__(self, values: dict[str, Tensor], *inputs: Tensor) -> Any:
        given = {name: values[full] for name, full in self.names.items() if full in values}
        with parameters_lock(self.model):
            return functional_call(self.model, given, inputs, tie_weights=False)


@dataclass(frozen=True)
class Entry:
    """One parameter tensor: its name, its shape, and the layer it belongs to.

    `per_filter` is True if its first axis runs over the filters of a convolution.
    """

    name: str
    shape: torch.Size
    layer: str
    per_filter: bool

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def channels(self) -> Tensor:
        """Index of every element along the first axis: `[numel]`."""
        first = self.shape[0] if self.shape else 1
        return torch.arange(first).repeat_interleave(self.numel // first)


class Layout:
    """The adapted parameters of a network as one flat vector of D entries.

    A point of a path is a tensor `[T, D]`, one row per task. A layer here is a convolution or linear module
    together with the normalisation that directly follows it.

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

        All other parameters are shared by all tasks; those that require a gradient are still meta-learned.
        """
        refuse_lazy(model)
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
            per_filter = convolutional if joins else isinstance(module, (*_CONVOLUTIONS, *NORMS))
            for name, parameter in own:
                seen.add(id(parameter))
                full = f"{module_name}.{name}" if module_name else name
                if parameter.requires_grad and adapted(full):
                    entries.append(Entry(full, parameter.shape, layer, per_filter))
        if not entries:
            learned = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
            if learned:
                names = learned if len(learned) < 4 else [*learned[:2], "…", learned[-1]]
                raise UsageError(f"model: none of {', '.join(names)} is selected, so nothing can adapt")
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
        """The names of the layers, in order."""
        return list(dict.fromkeys(e.layer for e in self.entries))

    def flatten(self, model: nn.Module) -> Tensor:
        """The network's parameters as one vector `[D]`, differentiable with respect to them."""
        with parameters_lock(model):
            parameters = dict(model.named_parameters())
        return torch.cat([parameters[e.name].reshape(-1) for e in self.entries])

    def views(self, point: Tensor) -> dict[str, Tensor]:
        """Parameters by name, as views of a point `[…, D]`; leading axes are kept."""
        lead = point.shape[:-1]
        parts = point.split_with_sizes(self.sizes, dim=-1)
        return {
            e.name: part if len(e.shape) == 1 else part.view((*lead, *e.shape))
            for e, part in zip(self.entries, parts, strict=True)
        }

    def index(self, granularity: Granularity) -> tuple[Tensor, int]:
        """The index of each entry's coefficient, `[D]`, and the number of coefficients.

        | granularity | one coefficient per |
        |---|---|
        | `model`, `layer`, `tensor`, `parameter` | model, layer, tensor, parameter |
        | `filter` | convolution filter: its weights, bias, and its channel's norm gain and shift; \
                     and, as in the paper, per parameter of a fully-connected layer |
        | `tensor-channel` | output channel or unit, separately in each tensor |
        """
        one_of(Granularity, granularity=granularity)
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
        """A key of the coefficients that this tensor uses, and the index among them for each element."""
        if granularity in ("model", "layer", "tensor"):
            owner = {"model": "", "layer": entry.layer, "tensor": entry.name}[granularity]
            return owner, torch.zeros(entry.numel, dtype=torch.long)
        if granularity == "tensor-channel":
            return entry.name, entry.channels()
        if granularity == "filter" and entry.per_filter:
            return entry.layer, entry.channels()
        return entry.name, torch.arange(entry.numel)


def refuse_lazy(model: nn.Module) -> None:
    """Raise if a layer, such as `nn.LazyLinear`, takes its shape from inputs that it has not seen yet."""
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise UsageError(f"{name} has no shape yet; run the model once first", field="model")


class GroupBroadcast(nn.Module):
    """Broadcasts one coefficient per group, `[…, groups]`, to all entries of the flat vector, `[…, D]`.

    `order` lists the entries of the vector group by group, `starts` the offset of each group in that list.
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
        """Sum `values […, D]` within each group."""
        if values.ndim > 1:
            rows = [self.sums(row) for row in values]
            return torch.stack(rows) if rows else values.new_empty(*values.shape[:-1], self.groups)
        ordered = values if self.sorted else values.index_select(0, self.order)
        return torch.segment_reduce(ordered, "sum", offsets=self.starts, unsafe=True)


class _Broadcast(Function):
    """Indexing whose derivative sums group by group: PyTorch's uses atomics, slowly and in any order."""

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


def clone_with_parameters(model: nn.Module, values: dict[str, Tensor]) -> nn.Module:
    """Copy the model with these parameter values, by name; parameters and buffers are not shared with it.

    Five times faster than `deepcopy`, because only parameters, buffers, submodules and containers are copied;
    other attributes are shared. Lists, dictionaries and bound methods refer to the copied modules.
    """
    copies: dict[int, Any] = {}  # by the id of the original, so that tied parameters stay tied
    referring: list[tuple[dict[str, Any], str]] = []  # attributes that may refer to what is copied
    sources: list[Tensor] = []
    targets: list[Tensor] = []

    def parameter(original: nn.Parameter) -> nn.Parameter:
        sources.append(values.get(names[id(original)], original).detach())
        targets.append(torch.empty_like(sources[-1]))
        return nn.Parameter(targets[-1], requires_grad=original.requires_grad)

    def module(original: nn.Module) -> nn.Module:
        new = original.__class__.__new__(original.__class__)
        new.__dict__ = own = {k: _copy_container(v) for k, v in original.__dict__.items()}
        referring.extend((own, k) for k, v in own.items() if k not in _TABLES and _may_refer(v))
        new._parameters = {k: once(v, parameter) for k, v in original._parameters.items()}
        new._buffers = {k: once(v, Tensor.clone) for k, v in original._buffers.items()}
        new._modules = {k: once(v, module) for k, v in original._modules.items()}
        return new

    def once(original: Any, make: Any) -> Any:
        if original is None:
            return None
        if id(original) not in copies:
            copies[id(original)] = make(original)
        return copies[id(original)]

    with parameters_lock(model):
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        clone: nn.Module = once(model, module)
    for own, name in referring:
        own[name] = _replaced(own[name], copies)
    if targets:
        torch._foreach_copy_(targets, sources)  # one launch on a GPU
    return clone


def _replaced(value: Any, copies: dict[int, Any], within: tuple[int, ...] = ()) -> Any:
    """A value in which all copied objects are replaced by their copies; itself if it refers to none."""
    if id(value) in copies:
        return copies[id(value)]
    if not isinstance(value, _REFERRING) or id(value) in within:
        return value
    within = (*within, id(value))
    if isinstance(value, MethodType):
        owner = _replaced(value.__self__, copies, within)
        return value if owner is value.__self__ else MethodType(value.__func__, owner)
    if isinstance(value, partial):
        parts = value.func, value.args, value.keywords
        function, arguments, keywords = (_replaced(part, copies, within) for part in parts)
        same = all(new is old for new, old in zip((function, arguments, keywords), parts, strict=True))
        return value if same else partial(function, *arguments, **keywords)
    old = list(value.values()) if isinstance(value, dict) else list(value)
    new = [_replaced(each, copies, within) for each in old]
    if all(a is b for a, b in zip(new, old, strict=True)):
        return value
    if isinstance(value, tuple):
        return value._make(new) if hasattr(value, "_make") else type(value)(new)
    changed: Any = copy.copy(value)  # of the same class
    for key, each in zip(value, new, strict=True) if isinstance(value, dict) else enumerate(new):
        changed[key] = each
    return changed


def _may_refer(value: Any) -> bool:
    """True if a value may refer to parts of a network; most containers of a module are empty."""
    if isinstance(value, (list, tuple, dict)):
        return len(value) > 0
    return isinstance(value, (nn.Module, MethodType, partial))


def _copy_container(value: Any) -> Any:
    """Copy a dict, list or set: a hook that is registered with the copy must not fire in the original."""
    if not isinstance(value, (dict, list, set)):
        return value
    return copy.copy(value) if value else value.__class__()
