"""Convolutions of wide networks on a GPU, channels last, with derivatives of every order.

PyTorch's second derivative of a convolution uses filters as large as an image, one group at a time, which no
library computes fast. Here derivatives of every order are made of

    y = x ∗ w        `convolve`
    gx = gy ∗ᵀ w     `transposed`, the gradient of the input
    gw = x ⋆ gy      `correlated`, the gradient of the filters

Each kind of convolution may first bring inputs and filters into the form that it reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function

from pathaware.core.path import differentiable_once
from pathaware.engine.kernels import needed_now


@dataclass(frozen=True)
class SharedFilters:
    """Filters `[O, I, k, k]` for all tasks: their images are one batch."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def read(self, x: Tensor) -> Tensor:
        return x

    def filters(self, weight: Tensor, x: Tensor) -> Tensor:
        return weight.to(x.dtype).contiguous(memory_format=torch.channels_last)

    def convolve(self, x: Tensor, filters: Tensor) -> Tensor:
        y = self._forward(x.flatten(0, 1), filters)
        return y.view(*x.shape[:2], *y.shape[1:])

    def transposed(self, gy: Tensor, filters: Tensor, x: Tensor) -> Tensor:
        return self._input(gy.flatten(0, 1), filters, x.flatten(0, 1)).view(x.shape)

    def correlated(self, x: Tensor, gy: Tensor, filters: Tensor) -> Tensor:
        return self._filters(x.flatten(0, 1), gy.flatten(0, 1), filters)

    def _forward(self, x: Tensor, filters: Tensor) -> Tensor:
        settings = self.stride, self.padding, self.dilation, False, (0, 0), self.groups
        return _last(torch.ops.aten.convolution(_first(x), filters, None, *settings))

    def _input(self, gy: Tensor, filters: Tensor, x: Tensor) -> Tensor:
        return _last(self._backward(gy, x, filters, [True, False, False])[0])

    def _filters(self, x: Tensor, gy: Tensor, filters: Tensor) -> Tensor:
        return self._backward(gy, x, filters, [False, True, False])[1]

    def _backward(self, gy: Tensor, x: Tensor, filters: Tensor, which: list[bool]) -> tuple[Tensor, ...]:
        settings = self.stride, self.padding, self.dilation, False, (0, 0), self.groups
        found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
            _first(gy), _first(x), filters, None, *settings, which
        )
        return found


@dataclass(frozen=True)
class OwnFilters(SharedFilters):
    """Filters `[T, O, I, k, k]`, applied to one task after another."""

    def filters(self, weight: Tensor, x: Tensor) -> Tensor:
        return weight.to(x.dtype).permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)

    def convolve(self, x: Tensor, filters: Tensor) -> Tensor:
        return _each(self._forward, x, filters)

    def transposed(self, gy: Tensor, filters: Tensor, x: Tensor) -> Tensor:
        return _each(self._input, gy, filters, x)

    def correlated(self, x: Tensor, gy: Tensor, filters: Tensor) -> Tensor:
        return _each(self._filters, x, gy, filters)


@dataclass(frozen=True)
class ProductFilters:
    """Filters `[T, O, I, k, k]` as matrix products of all tasks.

    `read` copies the k·k·C numbers that an output depends on into a row. Filters are read as they are stored,
    and their gradient is written so.
    """

    kernel: int

    def read(self, x: Tensor) -> Tensor:
        tasks, images, height, width, channels = x.shape
        k, pad = self.kernel, self.kernel // 2
        if k == 1:
            return x.reshape(tasks, -1, channels)
        windows = F.pad(x, (0, 0, pad, pad, pad, pad)).unfold(2, k, 1).unfold(3, k, 1)
        return windows.reshape(tasks, images * height * width, channels * k * k)

    def filters(self, weight: Tensor, x: Tensor) -> Tensor:
        return weight.to(x.dtype)

    def convolve(self, rows: Tensor, filters: Tensor) -> Tensor:
        return torch.bmm(rows, filters.flatten(2).transpose(1, 2))

    def transposed(self, rows: Tensor, filters: Tensor, x: Tensor) -> Tensor:
        return torch.bmm(rows, filters.flip(3, 4).transpose(1, 2).reshape(len(x), x.shape[-1], -1).mT)

    def correlated(self, rows: Tensor, gy: Tensor, filters: Tensor) -> Tensor:
        return torch.bmm(gy.flatten(1, 3).mT, rows).view(filters.shape)


@dataclass(frozen=True)
class KernelFilters:
    """Filters `[T, O, I, 3, 3]` with Triton's kernels, which have derivatives of their own."""


Kind = SharedFilters | ProductFilters
"""Convolutions made of the three operations."""

WIDE = 2048
"""Inputs per output from which one task after another is faster: each fills a GPU."""


def kind_of(module: nn.Conv2d, *, shared: bool) -> Kind | KernelFilters | None:
    """How this convolution is computed, or None if it is not one that can be computed here."""
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    if isinstance(module.padding, str):
        if module.padding == "same" and any(k % 2 == 0 for k in kernel):
            return None
        same = tuple(d * (k // 2) for d, k in zip(dilation, kernel, strict=True))
        padding = same if module.padding == "same" else (0, 0)
    else:
        padding = module.padding
    settings = stride, padding, dilation, module.groups
    k = kernel[0]
    plain = kernel == (k, k) and k % 2 == 1 and padding == (k // 2, k // 2)
    plain = plain and stride == dilation == (1, 1) and module.groups == 1
    if shared:
        return SharedFilters(*settings)
    if not plain or (k > 1 and k * k * module.in_channels >= WIDE):
        return OwnFilters(*settings)
    if k == 3 and _is_stored(module.in_channels) and _is_stored(module.out_channels):
        return KernelFilters()
    return ProductFilters(k)


class Convolution(Function):
    """x `[T, N, H, W, I]`, filters `[T, O, I, k, k]` or `[O, I, k, k]` → y `[T, N, H′, W′, O]`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, kind: Kind) -> Tensor:
        read, filters = kind.read(x), kind.filters(weight, x)
        ctx.save_for_backward(x, weight, read, filters)
        ctx.kind = kind
        y = kind.convolve(read, filters)
        return y if y.ndim == 5 else y.view(*x.shape[:4], -1)

    @staticmethod
    def backward(ctx: Any, gy: Tensor) -> tuple[Tensor | None, ...]:
        needed = needed_now(ctx, 0), needed_now(ctx, 1)
        gx, gw = ConvolutionGradient.apply(gy, *ctx.saved_tensors, ctx.kind, needed)
        return gx, gw, None


class ConvolutionGradient(Function):
    """gy, x, filters → gx and gw, those that are needed."""

    @staticmethod
    def forward(
        ctx: Any,
        gy: Tensor,
        x: Tensor,
        weight: Tensor,
        read: Tensor,
        filters: Tensor,
        kind: Kind,
        needed: tuple[bool, bool],
    ) -> tuple[Tensor | None, Tensor | None]:
        ctx.set_materialize_grads(False)
        gy = gy.contiguous()
        gy_read = kind.read(gy) if needed[0] else None
        ctx.save_for_backward(gy, x, weight, gy_read, read, filters)
        ctx.kind = kind
        gx = None if gy_read is None else kind.transposed(gy_read, filters, x).view(x.shape)
        gw = kind.correlated(read, gy, filters).to(weight.dtype) if needed[1] else None
        return gx, gw

    @staticmethod
    @differentiable_once
    def backward(ctx: Any, u: Tensor | None, v: Tensor | None) -> tuple[Tensor | None, ...]:
        gy, x, weight, gy_read, read, filters = ctx.saved_tensors
        kind: Kind = ctx.kind
        ggy = gx = gw = None
        if u is not None:
            u_read = kind.read(u.contiguous())
            ggy = kind.convolve(u_read, filters)
            gw = kind.correlated(u_read, gy, filters).to(weight.dtype)
        if v is not None:
            along = kind.filters(v, x)
            more = kind.convolve(read, along)
            ggy = more if ggy is None else ggy + more
            if needed_now(ctx, 1):
                gy_read = kind.read(gy) if gy_read is None else gy_read
                gx = kind.transposed(gy_read, along, x).view(x.shape)
        return None if ggy is None else ggy.view(gy.shape), gx, gw, *[None] * 4


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, kind: Kind | KernelFilters
) -> tuple[Tensor, Tensor | None]:
    """`x [T, N, H, W, I]` convolved with filters and their bias `[T, O]` or `[O]`, and its moments, if they
    are by-products.

    Libraries are fast if the number of channels is a multiple of four, or of eight numbers of 16 bits.
    """
    if isinstance(kind, KernelFilters):
        from pathaware.engine.kernels.functions import Convolution as KernelConvolution  # needs Triton

        y, moments = KernelConvolution.apply(x, weight.expand(len(x), *weight.shape[-4:]), bias is None)
    else:
        missing = -x.shape[-1] % (16 // x.element_size()) if getattr(kind, "groups", 1) == 1 else 0
        if missing:
            x, weight = F.pad(x, (0, missing)), F.pad(weight, (0, 0, 0, 0, 0, missing))
        y, moments = Convolution.apply(x, weight, kind), None
    return (y, moments) if bias is None else (y + bias.to(y.dtype).view(-1, 1, 1, 1, bias.shape[-1]), None)


def _is_stored(channels: int) -> bool:
    """True if the kernels store this number of channels without padding."""
    return channels >= 16 and channels & (channels - 1) == 0


def _first(x: Tensor) -> Tensor:
    """`[N, H, W, C]` as PyTorch's convolutions take it, without a copy."""
    return x.permute(0, 3, 1, 2)


def _last(y: Tensor) -> Tensor:
    return y.permute(0, 2, 3, 1).contiguous()


def _each(function: Callable[..., Tensor], *stacked: Tensor) -> Tensor:
    """The function of each task's part of the arguments, stacked again."""
    return torch.stack([function(*part) for part in zip(*stacked, strict=True)])
