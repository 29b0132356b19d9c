"""Shared by all kernels: sizes, output tensors, precision, and sums and moments joined from partial results.

Partial results are joined in a fixed order, so that the same inputs give the same bits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

Result = TypeVar("Result")


def blocks(size: int, block: int) -> int:
    """The number of blocks that cover `size`."""
    return -(-size // block)


def empty(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """An uninitialised tensor on the device of `like`, by default of its dtype."""
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device)


def accumulator(data: Tensor) -> tuple[torch.dtype, tl.dtype]:
    """The dtype of sums: float32, or float64 in tests, which run everything in float64."""
    return (torch.float64, tl.float64) if data.dtype == torch.float64 else (torch.float32, tl.float32)


def dot_precision(data: Tensor) -> str:
    """The precision of float32 products: TF32 if PyTorch may use it, else three TF32 products, which are as
    accurate as float32 at a third of the speed."""
    if data.dtype != torch.float32:
        return "ieee"
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"


_local = threading.local()


class SecondStream:
    """Launches that run beside those of the current stream until `wait`, if a CUDA graph is captured.

    A small layer does not fill a GPU: it saves 1 to 3 % on an H200. Without a graph, launching takes longer
    than two streams could save.
    """

    def __init__(self, activations: Tensor) -> None:
        captured = activations.is_cuda and torch.cuda.is_current_stream_capturing()
        self.stream = _stream(activations.device) if captured else None
        self.kept: list[object] = []  # the current stream must not use their memory again yet

    def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function whose launches depend on the current stream's launches so far."""
        if self.stream is None:
            return function(*arguments)
        self.kept += arguments
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            return function(*arguments)

    def wait(self) -> None:
        """Let the current stream wait for all that ran beside it."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
        self.kept.clear()


def _stream(device: torch.device) -> torch.cuda.Stream:
    """The second stream of this thread on a device: another thread may capture a graph of its own."""
    streams = _local.__dict__.setdefault("streams", {})
    if device not in streams:
        streams[device] = torch.cuda.Stream(device)
    stream: torch.cuda.Stream = streams[device]
    return stream


_SUMMED = 16_384
"""Numbers that a program adds at once: more would not fit into its registers."""


def sum_parts(partial: Tensor, out: Tensor | None = None) -> Tensor:
    """Sum `[T, parts, …]` over the parts: `[T, …]`, written to `out` if given."""
    tasks, parts, *rest = partial.shape
    total = empty(partial, tasks, *rest) if out is None else out
    size, rows = total[0].numel(), triton.next_power_of_2(parts)
    block = max(1, min(32, _SUMMED // rows))
    join_kernel[(blocks(size, block), tasks)](
        partial, total, parts, size, total.stride(0), PARTS=rows, BLOCK=block
    )
    return total


FEW = 32
"""Up to this number, every program that needs a sum adds its parts itself, which saves a launch."""


def few_parts(partial: Tensor) -> Tensor:
    """Add parts of `[T, parts, …]` to each other if they are many; the sums stay the same."""
    return partial if partial.shape[1] <= FEW else sum_parts(partial).unsqueeze(1)


_PARTS = 128
_ROWS = 64
"""Programs that sum the pixels of a task, and pixels that each reads at once."""


def sum_pixels(values: Tensor, out: Tensor) -> None:
    """Sum `values [T, …, C]` over all pixels into `out [T, C′]`, which may have fewer channels."""
    tasks, channels, width = len(values), values.shape[-1], out.shape[1]
    pixels = values[0].numel() // channels
    rows = _ROWS * blocks(blocks(pixels, _ROWS), _PARTS)  # of a program
    parts, (dtype, acc) = blocks(pixels, rows), accumulator(values)
    partial = empty(values, tasks, parts, width, dtype=dtype)
    sum_pixels_kernel[(parts, tasks)](
        values, partial, pixels, rows, width, CHANNELS=channels, ROWS=_ROWS, ACC=acc
    )
    sum_parts(partial, out)


def stored_channels(channels: int) -> int:
    """The number of channels with which activations are stored: kernels need a power of two, at least 16.

    Channels beyond those of the network are zero, and so are all their derivatives.
    """
    return max(16, int(triton.next_power_of_2(channels)))


def constant_moments(statistics: Sequence[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Means and variances `[C]` of several norms, which are the same for all tasks, as moments `[2, C]`."""
    pieces = []
    for pair in statistics:
        missing = stored_channels(len(pair[0])) - len(pair[0])
        for values in pair:
            pieces += [values, values.new_zeros(missing)] if missing else [values]
    sizes = [2 * stored_channels(len(mean)) for mean, _ in statistics]
    return [part.view(2, -1) for part in torch.cat(pieces).split(sizes)] if pieces else []  # one launch


def is_constant(moments: Tensor) -> bool:
    """True for moments `[2, C]` that do not depend on the images; those of a batch are `[T, 2, C]`."""
    return moments.ndim == 2


def join_moments(partial: Tensor, pixels: int, rows: int) -> Tensor:
    """Mean and variance `[T, 2, C]` from those of tiles of `rows` pixels, `[T, 2, C, tiles]`."""
    tasks, _, channels, tiles = partial.shape
    moments = empty(partial, tasks, 2, channels)
    join_moments_kernel[(channels, tasks)](
        partial, moments, tiles, pixels, rows, CHANNELS=channels, BLOCK=1024
    )
    return moments


@triton.jit
def join_kernel(partial, total, parts, size, stride, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    task = tl.program_id(1)
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p = tl.arange(0, PARTS)
    at = partial + (task * parts + p)[:, None] * size + e[None, :]
    values = tl.load(at, mask=(p < parts)[:, None] & (e < size)[None, :], other=0.0)
    tl.store(total + task * stride + e, tl.sum(values, 0), mask=e < size)


@triton.jit
def sum_pixels_kernel(
    values, partial, pixels, rows, width, CHANNELS: tl.constexpr, ROWS: tl.constexpr, ACC: tl.constexpr
):
    part = tl.program_id(0)
    task = tl.program_id(1)
    c = tl.arange(0, CHANNELS)
    r = tl.arange(0, ROWS)
    total = tl.zeros((ROWS, CHANNELS), ACC)
    for row in range(part * rows, (part + 1) * rows, ROWS):
        at = values + (task * pixels + row + r)[:, None] * CHANNELS + c[None, :]
        total += tl.load(at, mask=(row + r < pixels)[:, None], other=0.0).to(ACC)
    to = partial + (task * tl.num_programs(0) + part) * width + c
    tl.store(to, tl.sum(total, 0), mask=c < width)


@triton.jit
def join_moments_kernel(partial, moments, tiles, pixels, rows, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """Mean and variance of a channel from those of its tiles; all but the last hold `rows` pixels."""
    channel = tl.program_id(0)
    task = tl.program_id(1)
    i = tl.arange(0, BLOCK)
    means = partial + (task * 2 * CHANNELS + channel) * tiles
    squares = means + CHANNELS * tiles
    total = tl.zeros((BLOCK,), partial.dtype.element_ty)
    for first in range(0, tiles, BLOCK):
        at = first + i
        count = tl.minimum(pixels - at * rows, rows)
        total += tl.load(means + at, mask=at < tiles, other=0.0) * count
    mean = tl.sum(total, 0) / pixels
    total = tl.zeros((BLOCK,), partial.dtype.element_ty)
    for first in range(0, tiles, BLOCK):
        at = first + i
        count = tl.minimum(pixels - at * rows, rows)
        away = tl.load(means + at, mask=at < tiles, other=0.0) - mean
        within = tl.load(squares + at, mask=at < tiles, other=0.0)
        total += tl.where(at < tiles, within + away * away * count, 0.0)
    tl.store(moments + task * 2 * CHANNELS + channel, mean)
    tl.store(moments + (task * 2 + 1) * CHANNELS + channel, tl.sum(total, 0) / pixels)


@triton.jit
def store_moments(partial, y, inside, pixels, task, o, OUTPUTS: tl.constexpr, ROWS: tl.constexpr):
    """Stores the mean and squared deviation of this program's pixels in channels o; plain sums of squares
    would cancel."""
    tile = tl.program_id(0)
    mean = tl.sum(y, 0) / tl.minimum(pixels - tile * ROWS, ROWS)
    away = tl.where(inside[:, None], y - mean[None, :], 0.0)
    tiles = tl.num_programs(0)
    at = partial + (task * 2 * OUTPUTS + o) * tiles + tile
    tl.store(at, mean)
    tl.store(at + OUTPUTS * tiles, tl.sum(away * away, 0))
