"""Activations of T tasks at once, in one of two layouts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor


class NotLowerable(Exception):
    """The network holds something that has no batched form; the message says what."""


@dataclass(frozen=True)
class Activations:
    """What flows between batched layers.

    - rows: `data [T, N, …]`. Linear layers work on these with batched matrix products.
    - images (`grouped`): `data [N, T·C, H, W]`. Tasks are groups of channels, so a grouped
      convolution gives every task its own filters and batch norm its own statistics.
    """

    data: Tensor
    tasks: int
    grouped: bool = False

    def map(self, data: Tensor) -> Activations:
        """The same layout with other data."""
        return replace(self, data=data)

    def images(self) -> Activations:
        if self.grouped:
            return self
        if self.data.ndim != 5:
            raise ValueError(f"images must be [tasks, N, C, H, W], got {tuple(self.data.shape)}")
        tasks, count, channels, height, width = self.data.shape
        data = self.data.transpose(0, 1).reshape(count, tasks * channels, height, width)
        return Activations(data, tasks, grouped=True)

    def rows(self) -> Activations:
        if not self.grouped:
            return self
        count, channels, *space = self.data.shape
        data = self.data.view(count, self.tasks, channels // self.tasks, *space).transpose(0, 1)
        return Activations(data, self.tasks)

    def flat(self) -> Activations:
        """`[T, N, F]`"""
        return Activations(self.rows().data.flatten(2), self.tasks)
