"""Convolution as a matrix product: one row for every place of the filter.

On a CPU a convolution with filters of each task's own is faster so than as a grouped convolution, and its
derivatives are matrix products of the same rows. Images are channels last: `[T, N, H, W, C]`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def windows(images: Tensor, kernel: int, padding: int) -> Tensor:
    """`[T, N·H′·W′, kernel·kernel·C]`: what a filter sees at each of its H′ × W′ places.

    Joined from shifted images: each is copied in long runs, which one strided view of all is not.
    """
    if padding:
        images = F.pad(images, (0, 0, padding, padding, padding, padding))
    height, width = (side - kernel + 1 for side in images.shape[2:4])
    shifts = [images[:, :, i : i + height, j : j + width] for i in range(kernel) for j in range(kernel)]
    return torch.cat(shifts, dim=-1).flatten(1, 3)


def filters(weight: Tensor) -> Tensor:
    """Weights `[T, C′, C, k, k]` as a matrix `[T, k·k·C, C′]`: `windows(x) @ filters(W)` is convolution."""
    return weight.permute(0, 3, 4, 2, 1).reshape(len(weight), -1, weight.shape[1])


def mirrored(weight: Tensor) -> Tensor:
    """`[T, k·k·C′, C]`: `windows(g) @ mirrored(W)` is convolution's derivative in its input along g."""
    return weight.flip(3, 4).permute(0, 3, 4, 1, 2).reshape(len(weight), -1, weight.shape[2])


def unfilter(matrix: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of `filters`, as a view: `[T, k·k·C, C′]` → `[T, C′, C, k, k]`."""
    tasks, outputs, inputs, kernel, _ = shape
    return matrix.view(tasks, kernel, kernel, inputs, outputs).permute(0, 4, 3, 1, 2)
