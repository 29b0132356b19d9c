"""Activations of T tasks at once, in one of three layouts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from pathaware.batched import kernels


class NotLowerable(Exception):
    """The network holds something that has no batched form; the message says what."""


@dataclass(frozen=True)
class Activations:
    """What flows between batched layers.

    - `rows`: `data [T, N, …]`. Linear layers work on these with batched matrix products.
    - `grouped` images: `data [N, T·C, H, W]`. Tasks are groups of channels, so a grouped
      convolution gives every task its own filters and batch norm its own statistics.
    - `last`: images with channels last, `data [T, N, H, W, C]`, for the kernels, and perhaps in bfloat16;
      every other layer gets them in `dtype`.
    """

    data: Tensor
    tasks: int
    layout: Literal["rows", "grouped", "last"] = "rows"
    dtype: torch.dtype | None = None

    def map(self, data: Tensor) -> Activations:
        """The same layout with other data."""
        return replace(self, data=data)

    def images(self) -> Activations:
        if self.layout == "grouped":
            return self
        data = self.rows().data
        if data.ndim != 5:
            raise ValueError(f"images must be [tasks, N, C, H, W], got {tuple(data.shape)}")
        tasks, count, channels, height, width = data.shape
        return replace(
            self, data=data.transpose(0, 1).reshape(count, tasks * channels, height, width), layout="grouped"
        )

    def rows(self) -> Activations:
        if self.layout == "rows":
            return self
        if self.layout == "last":
            data = self.data.permute(0, 1, 4, 2, 3).to(self.dtype)
        else:
            count, channels, *space = self.data.shape
            data = self.data.view(count, self.tasks, channels // self.tasks, *space).transpose(0, 1)
        return replace(self, data=data, layout="rows")

    def last(self) -> Activations:
        if self.layout == "last":
            return self
        data = self.rows().data.permute(0, 1, 3, 4, 2).contiguous()
        return replace(self, data=data.to(kernels.storage(data)), layout="last", dtype=data.dtype)

    def flat(self) -> Activations:
        """`[T, N, F]`"""
        return replace(self, data=self.rows().data.flatten(2), layout="rows")
