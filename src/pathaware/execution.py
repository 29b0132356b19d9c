"""Three ways to run one network at T different points: `loop`, `vmap`, `batched`.

All take a point `[T, D]` and inputs `[T, N, …]` and return outputs `[T, N, …]`, and agree to rounding.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from pathaware.batched import NotLowerable, lower
from pathaware.errors import UsageError
from pathaware.explicit import NativeProgram, Program, explicit_program
from pathaware.layout import Layout
from pathaware.losses import Loss, per_task, per_task_loop

ExecutionName = Literal["auto", "loop", "vmap", "batched"]
Forward = Callable[[Tensor, Tensor], Tensor]


class Execution:
    """A network's forward pass and its loss, with a task axis.

    `program`, where there is one, computes gradients of the two faster than autograd differentiates them, and
    `native` those of one task on a GPU.
    """

    def __init__(self, name: str, forward: Forward, losses: Loss, program: Program | None = None) -> None:
        self.name = name
        self.forward = forward
        self.losses = losses
        self.program = program
        self.native = None if program is None else NativeProgram(program)


def select_execution(name: ExecutionName, model: nn.Module, layout: Layout, loss: Loss) -> Execution:
    """Choose how to run `model`. `auto` takes the fastest that the model allows.

    - `loop`: one task after another. Works for every module; what the others are checked against.
    - `vmap`: `torch.func.vmap`. Works for modules without data-dependent control flow.
    - `batched`: every layer lowered to one operation for all tasks. Works where every layer is known; on a
      CPU, a plain chain of layers has its derivatives written out as well (see `pathaware.explicit`).
    """
    if name not in get_args(ExecutionName):
        raise UsageError(f"execution: {name!r} is none of {', '.join(get_args(ExecutionName))}")
    if name == "loop":
        return Execution("loop", _loop(model, layout), per_task_loop(loss))
    if name == "vmap":
        return Execution("vmap", _vmap(model, layout), per_task(loss))
    try:
        losses = per_task(loss)
        return Execution("batched", lower(model, layout), losses, explicit_program(model, layout, losses))
    except NotLowerable as reason:
        if name == "batched":
            raise UsageError(f"execution: 'batched' cannot run this model ({reason}); use auto") from None
    return Execution("vmap", _vmap_or_loop(model, layout), per_task(loss))


def _loop(model: nn.Module, layout: Layout) -> Forward:
    def forward(point: Tensor, inputs: Tensor) -> Tensor:
        tasks = zip(point, inputs, strict=True)
        return torch.stack([functional_call(model, layout.views(p), (x,)) for p, x in tasks])

    return forward


def _vmap(model: nn.Module, layout: Layout) -> Forward:
    """Only the forward pass is mapped. Gradients are taken outside: inside of `vmap`, second derivatives of
    affine batch norm come out wrong by some per cent, and nothing says so."""

    def one(point: Tensor, inputs: Tensor) -> Tensor:
        outputs: Tensor = functional_call(model, layout.views(point), (inputs,))
        return outputs

    mapped: Forward = vmap(one, randomness="different")
    return mapped


def _vmap_or_loop(model: nn.Module, layout: Layout) -> Forward:
    """`vmap`, until it meets something that it cannot map; then `loop` from there on."""
    mapped, looped = _vmap(model, layout), _loop(model, layout)
    chosen: list[Forward] = []

    def forward(point: Tensor, inputs: Tensor) -> Tensor:
        if chosen:
            return chosen[0](point, inputs)
        try:
            outputs = mapped(point, inputs)
        except (RuntimeError, ValueError) as error:
            outputs = looped(point, inputs)  # an error of the model's own is raised again here
            reason = str(error).split("\n")[0]
            warnings.warn(f"vmap cannot run this model, tasks go one by one: {reason}", stacklevel=2)
            chosen.append(looped)
            return outputs
        chosen.append(mapped)
        return outputs

    return forward
