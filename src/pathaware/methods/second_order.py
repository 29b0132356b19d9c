"""Second-order optimisation for iMAML, separately for each task: conjugate gradients and a line search."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pathaware.core import path
from pathaware.core.path import all_true_on_host, being_traced

TRIALS = 5
"""Step sizes that a line search tries, each half of the one before."""


def tries_all(point: Tensor) -> bool:
    """True if `backtrack` tries all step sizes, and all at once: a captured CUDA graph cannot branch."""
    return not path.on_host(point) and not being_traced()


def backtrack(
    objective: Callable[[Tensor], Tensor], before: Tensor, point: Tensor, direction: Tensor, size: Tensor
) -> Tensor:
    """Halve step sizes `[T, 1]` until the objective `[T]` does not grow; zero where it grows with every size.

    `before` is the objective at the point. On a CPU the search ends once every task has a step size. Where it
    `tries_all`, the objective gets the points of all sizes, `[TRIALS · T, D]`.
    """
    limit = before + 8 * torch.finfo(before.dtype).eps * before.abs()  # rounding at the minimum
    if tries_all(point):
        factors = 0.5 ** torch.arange(TRIALS, device=size.device).to(size.dtype)
        trials = torch.addcmul(point, factors[:, None, None] * size, direction, value=-1)
        falls = objective(trials.flatten(0, 1)).view(TRIALS, -1) <= limit
        largest = torch.where(falls, factors[:, None], 0).amax(0)
        return largest[:, None] * size
    for trial in range(TRIALS):
        grows = ~(objective(point - size * direction) <= limit)
        if all_true_on_host(~grows):
            break
        smaller = size / 2 if trial < TRIALS - 1 else torch.zeros_like(size)
        size = torch.where(grows[:, None], smaller, size)
    return size


@torch.no_grad()
def conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, steps: int) -> Tensor:
    """x with A x ≈ b, where each row of `b [T, D]` is a separate system and `product` multiplies by its A.

    A row stops when it is solved, or when its A turns out not to be positive definite; see `stuck`.
    """
    x, residual, direction, zero = b, b, b, b.new_zeros(())
    size = dots(residual, residual)
    for step in range(steps):
        image = product(direction)
        curvature = dots(direction, image)
        active = torch.minimum(curvature, size) > 0  # False for NaN
        step_size = torch.where(active, size / curvature, zero)
        x = torch.addcmul(x, step_size, direction) if step else step_size * direction
        if step == steps - 1:
            break
        residual = torch.addcmul(residual, step_size, image, value=-1)
        previous, size = size, dots(residual, residual)
        direction = torch.where(active, torch.addcmul(residual, size / previous, direction), zero)
    return x


def stuck(solution: Tensor) -> Tensor:
    """True, `[T, 1]`, for systems in which conjugate gradients met no positive curvature: their x is zero."""
    return (solution == 0).all(1, keepdim=True)


def dots(a: Tensor, b: Tensor) -> Tensor:
    """Dot products of rows, `[T, 1]`."""
    return (a * b).sum(1, keepdim=True)
