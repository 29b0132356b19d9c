"""Solve symmetric positive definite systems of many tasks at once, by elimination.

`torch.linalg` leaves them to cuBLAS, cuSOLVER or MAGMA, depending on their size and number, and not all of
these can be captured in a CUDA graph. Few-shot tasks have few examples, so one step per example is cheap.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Solve(torch.autograd.Function):
    """X = A⁻¹B for a symmetric A. Then B̄ = A⁻¹X̄ and Ā = −B̄Xᵀ, so A is inverted once."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        inverted = inverse(a)
        x = inverted @ b
        ctx.save_for_backward(inverted, x)
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        inverted, x = ctx.saved_tensors
        b = inverted @ gradient
        return -b @ x.mT, b


def solve(a: Tensor, b: Tensor) -> Tensor:
    """X `[…, S, C]` with AX = B, for symmetric positive definite A `[…, S, S]` and B `[…, S, C]`.

    Differentiable once in both.
    """
    x: Tensor = _Solve.apply(a, b)
    return x


def inverse(a: Tensor) -> Tensor:
    """A⁻¹ for symmetric positive definite A `[…, S, S]`, by Gauss-Jordan steps

        A ← A − (A eₖ − eₖ)(eₖᵀ A + eₖᵀ) / Aₖₖ         for every row k

    There is no pivoting, which such matrices do not need. They are first scaled to a unit diagonal, so that
    pivots are at most one: with large pivots a step would subtract nearly equal numbers.
    """
    size = a.shape[-1]
    scale = a.diagonal(dim1=-2, dim2=-1).rsqrt()
    scales = scale.unsqueeze(-1) * scale.unsqueeze(-2)
    unit = torch.eye(size, dtype=a.dtype, device=a.device)
    # The pivots of a singular matrix would be rounding errors. This keeps them positive, and changes the
    # matrix by no more than rounding does.
    a = a * scales + size * torch.finfo(a.dtype).eps * unit
    for k in range(size):
        column = a[..., :, k : k + 1] - unit[:, k : k + 1]
        row = (a[..., k : k + 1, :] + unit[k]) / a[..., k : k + 1, k : k + 1]
        a = a - column * row
    return a * scales
