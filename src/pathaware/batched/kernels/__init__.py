"""Triton kernels for convolution blocks on CUDA. Everything works without them; they only make it faster.

They take what `torch.set_float32_matmul_precision` allows: `highest` computes as exactly as float32 does,
`high` multiplies in TF32, `medium` also keeps activations in bfloat16. Parameters, sums and
gradients of parameters are float32 in all three.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_allowed = True


def usable(point: Tensor) -> bool:
    """Whether the kernels can run a network whose parameters are `point`."""
    return _allowed and point.is_cuda and point.dtype == torch.float32 and _installed(point.device)


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
    """Triton is there, and the GPU has the tensor cores it compiles for (since Ampere)."""
    return importlib.util.find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (
        8,
        0,
    )
