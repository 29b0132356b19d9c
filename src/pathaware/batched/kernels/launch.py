"""What every kernel launch needs: sizes, output tensors, and the precision PyTorch was told to use."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pathaware.batched.kernels.device import sums


def blocks(size: int, block: int) -> int:
    """How many blocks cover `size`."""
    return -(-size // block)


def empty(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def accumulator(data: Tensor) -> tuple[torch.dtype, tl.dtype]:
    """What sums are kept in: float32, except that the tests run all of it in float64."""
    return (torch.float64, tl.float64) if data.dtype == torch.float64 else (torch.float32, tl.float32)


def dot_precision(data: Tensor) -> str:
    """How the tensor cores multiply float32: rounded to TF32 if PyTorch may do so, else split in three
    TF32 products, which gives float32's accuracy at a third of the speed."""
    if data.dtype != torch.float32:
        return "ieee"
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


def joined(partial: Tensor) -> Tensor:
    """Sums `[T, parts, K, C]` over its parts, always in the same order: `[T, K, C]`."""
    tasks, parts, *rest = partial.shape
    if parts == 1:
        return partial.squeeze(1)
    total = empty(partial, tasks, *rest)
    size, block = total[0].numel(), 32
    sums.join[(blocks(size, block), tasks)](
        partial, total, parts, size, PARTS=triton.next_power_of_2(parts), BLOCK=block
    )
    return total
