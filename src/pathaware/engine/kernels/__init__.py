"""Triton kernels for conv blocks and the preconditioned step on CUDA. Everything also works without them.

One file per operation, with launchers above their kernels; `functions` makes them differentiable. Precision
follows `torch.set_float32_matmul_precision`: `highest` is as exact as float32, `high` multiplies in TF32,
`medium` also stores activations in bfloat16. Parameters, sums and gradients of parameters are float32 in all
three.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_switches = threading.local()


def usable(point: Tensor) -> bool:
    """True if the kernels can run a network with these parameters. They run on the current GPU only."""
    if not (_enabled() and point.is_cuda and point.dtype == torch.float32):
        return False
    return point.device.index == torch.cuda.current_device() and _installed(point.device)


def can_convolve(inputs: int, outputs: int, *, first: bool) -> bool:
    """True if the kernels compute a 3×3 convolution with these numbers of channels.

    A program takes all channels at once. The first block reads images, which have few.
    """
    return inputs <= (4 if first else 128) and outputs <= 128


def storage(point: Tensor) -> torch.dtype:
    """The dtype in which activations are stored."""
    reduced = point.dtype == torch.float32 and torch.get_float32_matmul_precision() == "medium"
    return torch.bfloat16 if reduced else point.dtype


def operation(name: str, like: Tensor) -> Callable[..., Any] | None:
    """The kernel of an operation in `pathaware.core.operations` for tensors like this one."""
    if not usable(like):
        return None
    from pathaware.engine.kernels import update  # needs Triton

    return {
        "broadcast": update.Broadcast.apply,
        "preconditioned_step": update.Update.apply,
        "sum_groups": update.sum_groups,
        "lstm_step": update.LSTMStep.apply,
    }[name]


@contextmanager
def switched_off() -> Iterator[None]:
    """A context in which layers of this thread run one by one, so that they can be observed or changed."""
    before, _switches.enabled = _enabled(), False
    try:
        yield
    finally:
        _switches.enabled = before


def _enabled() -> bool:
    return getattr(_switches, "enabled", True)


@functools.cache
def _installed(device: torch.device) -> bool:
    """True if Triton is installed and works, and the GPU has the tensor cores it needs (since Ampere)."""
    if importlib.util.find_spec("triton") is None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return _compiles(device)


def _compiles(device: torch.device) -> bool:
    """Try a small kernel: Triton needs a C compiler and a writable cache, and training works without both."""
    from pathaware.engine.kernels import launch

    try:
        launch.sum_parts(torch.zeros(1, 2, 1, 16, device=device))
    except Exception as error:  # Triton fails in many ways
        reason = str(error).strip().split("\n")[0]
        warnings.warn(
            f"Triton cannot compile kernels here; slower PyTorch layers are used: {reason}", stacklevel=2
        )
        return False
    return True


def needed_now(ctx: Any, index: int) -> bool:
    """True if the current backward pass uses the gradient of this input.

    `ctx.needs_input_grad` says whether any pass could. An inner gradient is that of adapted parameters only,
    and needs neither the gradients of shared layers nor those of their outputs.
    """
    node = ctx.next_functions[index][0]
    if node is None or not ctx.needs_input_grad[index]:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:  # not answered for a parameter itself in `torch.autograd.grad`
        return True
