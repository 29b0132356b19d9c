"""Triton kernels for convolution blocks on CUDA. Everything works without them; they only make it faster.

They take what `torch.set_float32_matmul_precision` allows: `highest` computes as exactly as float32 does,
`high` multiplies in TF32, `medium` also keeps activations in bfloat16. Parameters, sums and
gradients of parameters are float32 in all three.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_allowed = True


def usable(point: Tensor) -> bool:
    """Whether the kernels can run a network with these parameters. They run on the current GPU only."""
    if not (_allowed and point.is_cuda and point.dtype == torch.float32):
        return False
    return point.device.index == torch.cuda.current_device() and _installed(point.device)


def storage(point: Tensor) -> torch.dtype:
    """What activations are kept in."""
    brief = point.dtype == torch.float32 and torch.get_float32_matmul_precision() == "medium"
    return torch.bfloat16 if brief else point.dtype


@contextmanager
def switched_off() -> Iterator[None]:
    """Layers run one by one in this block, for those who watch or change them on the way."""
    global _allowed
    before, _allowed = _allowed, False
    try:
        yield
    finally:
        _allowed = before


@functools.cache
def _installed(device: torch.device) -> bool:
    """Triton is there and works, and the GPU has the tensor cores it compiles for (since Ampere)."""
    if importlib.util.find_spec("triton") is None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return _compiles(device)


def _compiles(device: torch.device) -> bool:
    """Triton needs a C compiler and a cache to write to; a machine without them can train all the same."""
    from pathaware.engine.kernels import launch

    try:
        launch.sum_parts(torch.zeros(1, 2, 1, 16, device=device))
    except Exception as error:  # Triton fails in many ways
        reason = str(error).strip().split("\n")[0]
        warnings.warn(f"Triton cannot compile kernels here, layers run one by one: {reason}", stacklevel=2)
        return False
    return True
