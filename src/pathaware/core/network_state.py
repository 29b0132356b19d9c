"""The state of a network that an execution depends on, apart from the values of tensors."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Protocol

from torch import nn
from torch.nn.modules import module as torch_module

from pathaware.core.parameters import first_names, parameters_lock

FORWARD_HOOKS = "_forward_pre_hooks", "_forward_hooks"
BACKWARD_HOOKS = "_backward_pre_hooks", "_backward_hooks"

COMPARED = 1000
"""Entries up to which the contents of a module's lists, dictionaries and sets are compared."""


class Traced(Protocol):
    """A traced network, see `pathaware.models.traced`; `read_training` are the modules whose code reads
    `training`."""

    read_training: Container[nn.Module]


class NetworkState:
    """Everything but the values of tensors that an execution of a network depends on, as it was once.

    These are its modules, which names its parameters have and whether there are hooks. The execution of a
    `traced` network also depends on all attributes, because it does not run the network's own code again; on
    `training` only of modules whose code reads it, so that most networks can be evaluated as they are.
    """

    def __init__(self, model: nn.Module, traced: Traced | None = None) -> None:
        self.identity = id(model)  # differs in a deep copy
        with parameters_lock(model):
            self.modules = list(model.modules())
            self.names = first_names(model)
            self.hooks = hooks(self.modules, *FORWARD_HOOKS), hooks(self.modules, *BACKWARD_HOOKS)
            self.compared = [vars(module) if traced else module._modules for module in self.modules]
            self.seen = [copied_attributes(attributes) for attributes in self.compared]
            for module, seen in zip(self.modules, self.seen, strict=True):
                if traced is not None and module not in traced.read_training:
                    seen["training"] = _Anything()
            self.types = [type(module) for module in self.modules]
            self.hooked = self._hooked()
            self.parameters = self._parameters()

    @property
    def backward_hooks(self) -> bool:
        return self.hooked[1]

    def changed(self, model: nn.Module) -> bool:
        """True if an execution of this network must be chosen again. Takes a few microseconds."""
        if id(model) != self.identity:
            return True
        if self._same() and self._parameters() == self.parameters:
            return False
        with parameters_lock(model):  # another thread may have replaced parameters for one forward pass
            if not self._same() or first_names(model) != self.names:
                return True
            self.parameters = self._parameters()
        return False

    def _same(self) -> bool:
        try:
            same = self.compared == self.seen and [module.__class__ for module in self.modules] == self.types
        except Exception:  # such as arrays, which do not compare to one truth value: not the same object
            return False
        return same and self._hooked() == self.hooked

    def _hooked(self) -> tuple[bool, bool]:
        forward, backward = self.hooks
        return any(forward), any(backward)

    def _parameters(self) -> list[int]:
        return [id(p) for module in self.modules for p in module._parameters.values()]


class _Anything:
    """Equal to every value."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def hooks(modules: list[nn.Module], *kinds: str) -> list[Any]:
    """The dictionaries of hooks of these kinds: PyTorch's global ones, and one per module."""
    of_all = [getattr(torch_module, f"_global{kind}") for kind in kinds]
    return [*of_all, *(vars(module)[kind] for module in modules for kind in kinds)]


def copied_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a module, with copies of containers to compare what they contain; values of tensors may
    change."""
    return {name: _copied(name, value) for name, value in attributes.items()}


def _copied(name: str, value: Any) -> Any:
    small = type(value) in (list, dict, set) and len(value) <= COMPARED
    return value.copy() if small and name not in ("_parameters", "_buffers") else value
