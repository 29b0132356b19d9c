"""Batched forms of the layers of `torch.nn`, and the activations that flow between them.

Each form takes the module, its parameters with a leading task axis, and the activations. Add a custom layer
with `@batched(MyLayer)`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.batch_norm import FrozenBatchNorm
from pathaware.core.few_shot import wrong_features
from pathaware.engine import kernels
from pathaware.models.traced import NotLowerable


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
    if rows.shape[-1] != weight.shape[1]:
        raise wrong_features(p["weight"], rows.shape[-1])
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
    if rows.ndim not in (3, 4):
        raise ValueError(f"BatchNorm1d takes [tasks, N, F] or [tasks, N, C, L], got {tuple(rows.shape)}")
    out = _batch_norm(module, p, rows.transpose(0, 1).flatten(1, 2))
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
