"""Second-order optimisation for iMAML, separately for each task: Hessian-vector products, conjugate gradients
and a line search."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pathaware.core.learner import MetaLearner
from pathaware.core.path import known_full

TRIALS = 5
"""Step sizes that a line search tries, each half of the one before."""


def backtrack(
    objective: Callable[[Tensor], Tensor], point: Tensor, direction: Tensor, size: Tensor
) -> Tensor:
    """Halve step sizes `[T, 1]` until the objective `[T]` does not grow; zero where it grows with every size.

    On a CPU the search ends when all tasks are served. A captured CUDA graph always tries all sizes.
    """
    before = objective(point)
    limit = before + 8 * torch.finfo(before.dtype).eps * before.abs()  # rounding at the minimum
    for trial in range(TRIALS):
        grows = ~(objective(point - size * direction) <= limit)
        if known_full(~grows):
            break
        smaller = size / 2 if trial < TRIALS - 1 else torch.zeros_like(size)
        size = torch.where(grows[:, None], smaller, size)
    return size


def hessian(learner: MetaLearner, point: Tensor, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
    """The Hessian-vector product v ↦ H v of each task's loss at its point; all `[T, D]`."""
    with torch.enable_grad():
        here = point.detach().requires_grad_()
        gradient = learner.gradient(here, x, y, create_graph=True)[1]

    def product(v: Tensor) -> Tensor:
        (hvp,) = torch.autograd.grad(gradient, here, v, retain_graph=True)
        return hvp

    return product


@torch.no_grad()
def conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, steps: int) -> Tensor:
    """x with A x ≈ b, where each row of `b [T, D]` is a separate system and `product` multiplies by its A.

    A row stops when it is solved, or when its A turns out not to be positive definite.
    """
    x, residual, direction = torch.zeros_like(b), b, b
    size = dots(residual, residual)
    for _ in range(steps):
        image = product(direction)
        curvature = dots(direction, image)
        active = (curvature > 0) & (size > 0)
        step_size = torch.where(active, size / curvature, 0)
        x = x + step_size * direction
        residual = residual - step_size * image
        previous, size = size, dots(residual, residual)
        direction = torch.where(active, residual + size / previous * direction, 0)
    return x


def dots(a: Tensor, b: Tensor) -> Tensor:
    """Dot products of rows, `[T, 1]`."""
    return (a * b).sum(1, keepdim=True)
