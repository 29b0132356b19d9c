"""Batched forms of the layers of `torch.nn`, and the activations that flow between them.

Each form takes the module, its parameters with a leading task axis, and the activations. Add a custom layer
with `@batched(MyLayer)`.

On a GPU convolutions run channels last. PyTorch's second derivative of one takes filters as large as an image
and one group at a time, which no library computes fast. Here derivatives of every order are made of

    y = x ∗ w        `convolve`
    gx = gy ∗ᵀ w     `transposed`, the gradient of the input
    gw = x ⋆ gy      `correlated`, the gradient of the filters

Each kind of convolution may first bring inputs and filters into the form that it reads.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import Function, once_differentiable

from pathaware.core.batch_norm import FrozenBatchNorm
from pathaware.engine import kernels
from pathaware.engine.traced import NotLowerable


@dataclass(frozen=True)
class Activations:
    """Activations of T tasks, in one of three layouts.

    - `rows`: `data [T, N, …]`. Linear layers work on these with batched matrix products.
    - `grouped`: images, `data [N, T·C, H, W]`. Tasks are groups of channels, so a grouped convolution gives
      every task its own filters, and batch norm its own statistics.
    - `last`: images with channels last, `data [T, N, H, W, C]`, for the kernels, possibly in bfloat16;
      all other layers get them in `dtype`. Only the first `channels` of C are used, the others are zero.
      `moments` are the mean and variance `[T, 2, C]` of each channel, if they are known.
    """

    data: Tensor
    tasks: int
    layout: Literal["rows", "grouped", "last"] = "rows"
    dtype: torch.dtype | None = None
    channels: int | None = None
    moments: Tensor | None = None

    def map(self, data: Tensor) -> Activations:
        """The same layout with other data."""
        return replace(self, data=data, moments=None)

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
            data = self.data[..., : self.channels].permute(0, 1, 4, 2, 3).to(self.dtype)
        else:
            count, channels, *space = self.data.shape
            data = self.data.view(count, self.tasks, channels // self.tasks, *space).transpose(0, 1)
        return replace(self, data=data, layout="rows")

    def last(self, *, padded: bool = True) -> Activations:
        """Channels last: as many as the kernels of conv blocks store if `padded`, else those used only."""
        from pathaware.engine.kernels.launch import stored_channels  # needs Triton

        data = self.data if self.layout == "last" else self.rows().data.permute(0, 1, 3, 4, 2)
        channels = data.shape[-1] if self.layout != "last" or self.channels is None else self.channels
        missing = (stored_channels(channels) if padded else channels) - data.shape[-1]
        if self.layout == "last" and not missing:
            return self
        dtype = self.dtype if self.layout == "last" else data.dtype
        data = F.pad(data, (0, missing)).contiguous()
        data = data.to(kernels.storage(data))
        return Activations(data, self.tasks, "last", dtype=dtype, channels=channels)

    def flat(self) -> Activations:
        """`[T, N, F]`"""
        return replace(self, data=self.rows().data.flatten(2), layout="rows")


Parameters = dict[str, Tensor]
Layer = Callable[[Any, Parameters, Activations], Activations]

LAYERS: dict[type[nn.Module], Layer] = {}


def batched(*kinds: type[nn.Module]) -> Callable[[Layer], Layer]:
    """Register the batched form of module types (exact types: a subclass may compute something else)."""

    def register(layer: Layer) -> Layer:
        LAYERS.update(dict.fromkeys(kinds, layer))
        return layer

    return register


def check(module: nn.Module) -> None:
    """Raise `NotLowerable` for options that the batched forms below do not compute."""
    if type(module) not in LAYERS:
        raise NotLowerable(f"no batched form of {type(module).__name__}")
    if isinstance(module, nn.Conv2d) and module.padding_mode != "zeros":
        raise NotLowerable(f"no batched form of padding_mode={module.padding_mode!r}")
    if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)) and module.track_running_stats:
        raise NotLowerable("no batched form of running statistics that change")
    if isinstance(module, FrozenBatchNorm) and (module.weight is None or module.bias is None):
        raise NotLowerable("no batched form of a frozen batch norm without gain and shift")
    if isinstance(module, nn.Flatten) and (module.start_dim, module.end_dim) != (1, -1):
        raise NotLowerable("no batched form of a partial Flatten")
    if isinstance(module, nn.MaxPool2d) and module.return_indices:
        raise NotLowerable("no batched form of MaxPool2d with return_indices")


@batched(nn.Linear)
def linear(module: nn.Linear, p: Parameters, x: Activations) -> Activations:
    rows = x.rows().data
    weight = p["weight"].transpose(1, 2)
    flat = rows if rows.ndim == 3 else rows.flatten(1, -2)
    out = torch.baddbmm(p["bias"].unsqueeze(1), flat, weight) if "bias" in p else torch.bmm(flat, weight)
    return x.rows().map(out if rows.ndim == 3 else out.unflatten(1, rows.shape[1:-1]))


@batched(nn.Conv2d)
def conv2d(module: nn.Conv2d, p: Parameters, x: Activations) -> Activations:
    images = x.images()
    return images.map(
        F.conv2d(
            images.data,
            p["weight"].flatten(0, 1),
            p["bias"].flatten() if "bias" in p else None,
            module.stride,
            module.padding,
            module.dilation,
            x.tasks * module.groups,
        )
    )


@batched(nn.BatchNorm2d)
def batch_norm2d(module: nn.BatchNorm2d, p: Parameters, x: Activations) -> Activations:
    images = x.images()
    return images.map(_batch_norm(module, p, images.data))


@batched(nn.BatchNorm1d)
def batch_norm1d(module: nn.BatchNorm1d, p: Parameters, x: Activations) -> Activations:
    rows = x.rows().data
    if rows.ndim != 3:
        raise ValueError(f"BatchNorm1d runs batched on [tasks, N, F] only, got {tuple(rows.shape)}")
    out = _batch_norm(module, p, rows.transpose(0, 1).flatten(1))
    return x.rows().map(out.unflatten(1, (x.tasks, -1)).transpose(0, 1))


def _batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d, p: Parameters, data: Tensor) -> Tensor:
    weight, bias = (p["weight"].flatten(), p["bias"].flatten()) if module.affine else (None, None)
    return F.batch_norm(data, None, None, weight, bias, training=True, eps=module.eps)


@batched(FrozenBatchNorm)
def frozen_batch_norm(module: FrozenBatchNorm, p: Parameters, x: Activations) -> Activations:
    images = x.images()
    scale = p["weight"] * (module.running_var + module.eps).rsqrt()
    shift = p["bias"] - module.running_mean * scale
    return images.map(torch.addcmul(shift.view(1, -1, 1, 1), images.data, scale.view(1, -1, 1, 1)))


@batched(nn.LayerNorm)
def layer_norm(module: nn.LayerNorm, p: Parameters, x: Activations) -> Activations:
    rows = x.rows().data
    out = F.layer_norm(rows, module.normalized_shape, eps=module.eps)
    shape = (x.tasks,) + (1,) * (rows.ndim - 1 - len(module.normalized_shape)) + module.normalized_shape
    for name, join in (("weight", torch.mul), ("bias", torch.add)):
        if name in p:
            out = join(out, p[name].view(shape))
    return x.rows().map(out)


@batched(nn.Flatten)
def flatten(module: nn.Flatten, p: Parameters, x: Activations) -> Activations:
    return x.flat()


@batched(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
def per_image(module: nn.Module, p: Parameters, x: Activations) -> Activations:
    """Works on every channel separately, so groups of channels may stay together."""
    if x.layout == "last" and x.data.dtype == x.dtype:
        out = module(x.data.flatten(0, 1).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return x.map(out.contiguous().unflatten(0, x.data.shape[:2]))
    images = x.images()
    return images.map(module(images.data))


@batched(nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish)
@batched(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Hardtanh, nn.Hardswish, nn.Dropout)
def elementwise(module: nn.Module, p: Parameters, x: Activations) -> Activations:
    return x.map(_not_in_place(module)(x.data))


def _not_in_place(module: Any) -> Any:
    """In place, it would overwrite what the second derivative or the next step needs."""
    if getattr(module, "inplace", False):
        module = copy.copy(module)
        module.inplace = False
    return module


OWN: Literal["loop", "products", "kernels"] = "kernels"
"""How filters of each task are applied: by the library, one task after another; as matrix products of all
tasks, which takes square filters with stride 1 and equal sizes of inputs and outputs; or by
Triton's kernels, which also takes filters 3×3 and numbers of channels that are powers of two."""

SHARED: Literal["library", "kernels"] = "library"
"""How filters of all tasks are applied: by the library or by Triton's kernels."""


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
    wanted = SHARED if shared else OWN
    stored = _is_stored(module.in_channels) and _is_stored(module.out_channels)
    if wanted == "kernels" and plain and k == 3 and stored:
        return KernelFilters()
    if shared:
        return SharedFilters(*settings)
    if OWN in ("products", "kernels") and plain:
        return ProductFilters(k)
    return OwnFilters(*settings)


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
        gx, gw = ConvolutionGradient.apply(gy, *ctx.saved_tensors, ctx.kind, ctx.needs_input_grad[:2])
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
        gy_read = kind.read(gy) if needed[0] else gy
        ctx.save_for_backward(gy, x, weight, gy_read, read, filters)
        ctx.kind, ctx.needed = kind, needed
        gx = kind.transposed(gy_read, filters, x).view(x.shape) if needed[0] else None
        gw = kind.correlated(read, gy, filters).to(weight.dtype) if needed[1] else None
        return gx, gw

    @staticmethod
    @once_differentiable
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
            gx = kind.transposed(gy_read, along, x).view(x.shape) if ctx.needed[0] else None
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
    """True if the kernels store this number of channels without others that are zero."""
    return channels >= 16 and channels & (channels - 1) == 0


def _first(x: Tensor) -> Tensor:
    """`[N, H, W, C]` as PyTorch's convolutions take it, without a copy."""
    return x.permute(0, 3, 1, 2)


def _last(y: Tensor) -> Tensor:
    return y.permute(0, 2, 3, 1).contiguous()


def _each(function: Callable[..., Tensor], *stacked: Tensor) -> Tensor:
    """The function of each task's part of the arguments, stacked again."""
    return torch.stack([function(*part) for part in zip(*stacked, strict=True)])
