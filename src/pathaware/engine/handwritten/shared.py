"""Hand-written programs where some parameters do not adapt, as in BOIL, L2F or MT-net.

A program computes the gradient of all parameters of a network. So a point is completed with the parameters
that all tasks share, and of the gradient those columns are taken that belong to adapted ones. Autograd sees
two more nodes per step; a derivative with respect to the shared parameters is the sum over tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pathaware.core.parameters import Layout


class SharedParameters:
    """Maps points `[T, D]` of the adapted parameters to points `[T, D + E]` of all parameters, and back.

    `whole` is the layout of all parameters and `shared` holds those that do not adapt, by name.
    """

    def __init__(self, layout: Layout, whole: Layout, shared: Mapping[str, Tensor]) -> None:
        adapted = {entry.name for entry in layout.entries}
        runs = [
            (is_adapted, list(entries))
            for is_adapted, entries in groupby(whole.entries, lambda entry: entry.name in adapted)
        ]
        self.adapted = [is_adapted for is_adapted, _ in runs]
        self.sizes = [sum(entry.numel for entry in entries) for _, entries in runs]
        self.shared = [
            shared[entry.name] for is_adapted, entries in runs if not is_adapted for entry in entries
        ]

    def complete(self, point: Tensor) -> Tensor:
        """The point of all parameters, `[T, D + E]`; differentiable once."""
        if not torch.is_grad_enabled():
            return self.join(point, self._flat())
        completed: Tensor = _Complete.apply(point, self._flat(), self)
        return completed

    def select(self, gradient: Tensor) -> Tensor:
        """The columns `[T, D]` of the adapted parameters; differentiable once."""
        if not torch.is_grad_enabled():
            return self.split(gradient, of_adapted=True)
        selected: Tensor = _Select.apply(gradient, self)
        return selected

    def join(self, adapted: Tensor, shared: Tensor) -> Tensor:
        """Adapted columns `[T, D]` and shared ones `[E]` in the order of the whole network."""
        sources = {True: adapted, False: shared.expand(len(adapted), -1)}
        taken = {True: 0, False: 0}
        parts = []
        for is_adapted, size in zip(self.adapted, self.sizes, strict=True):
            parts.append(sources[is_adapted].narrow(1, taken[is_adapted], size))
            taken[is_adapted] += size
        return torch.cat(parts, dim=1)

    def split(self, whole: Tensor, *, of_adapted: bool) -> Tensor:
        """The columns of adapted or of shared parameters."""
        parts = whole.split_with_sizes(self.sizes, dim=1)
        chosen = [
            part for part, is_adapted in zip(parts, self.adapted, strict=True) if is_adapted is of_adapted
        ]
        return chosen[0] if len(chosen) == 1 else torch.cat(chosen, dim=1)

    def _flat(self) -> Tensor:
        return torch.cat([parameter.reshape(-1) for parameter in self.shared])


class _Complete(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, point: Tensor, shared: Tensor, parameters: SharedParameters) -> Tensor:
        ctx.parameters = parameters
        return parameters.join(point, shared)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        of_point, of_shared = (
            ctx.parameters.split(gradient, of_adapted=adapted) if needed else None
            for adapted, needed in zip((True, False), ctx.needs_input_grad, strict=False)
        )
        return of_point, None if of_shared is None else of_shared.sum(0), None


class _Select(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, parameters: SharedParameters) -> Tensor:
        ctx.parameters = parameters
        return parameters.split(gradient, of_adapted=True).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_adapted: Tensor) -> Any:
        nothing = to_adapted.new_zeros(sum(parameter.numel() for parameter in ctx.parameters.shared))
        return ctx.parameters.join(to_adapted, nothing), None
