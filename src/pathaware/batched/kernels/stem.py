"""The first block of a network: convolution, batch norm, ReLU and pool of images, nothing in between stored.

Images have few channels, so the convolution's output is many times larger than its input and cheaper to
compute than to read. Every pass therefore computes the pixels that it needs again, and derivatives of the
filters are summed up on the spot. Images are data and get no gradient. The mathematics is that of
`normalisation`, with u = conv(x, v) for a cotangent v of the filters' gradient.

Images come padded by one pixel, and to even sides: `[T, N, I, H + 2, W + 2]`. Then the 9·I values that a
pixel needs lie at fixed distances, and one matrix product with the filters `[O, 9·I]` gives its channels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
import triton
from torch import Tensor

from pathaware.batched.kernels.convolution import join_moments
from pathaware.batched.kernels.device import stem as device
from pathaware.batched.kernels.launch import accumulator, blocks, dot_precision, empty, joined
from pathaware.batched.kernels.normalisation import first_sums

_PARTS = 1056
"""Into how many parts sums are split: eight programs for each multiprocessor of an H200."""

_BLOCK = 16
"""Windows that a program works on at once."""


@dataclass(frozen=True)
class Images:
    """Images of T tasks, padded for the kernels, and their true size."""

    padded: Tensor
    height: int
    width: int

    @classmethod
    def of(cls, x: Tensor) -> Images:
        """From `x [T, N, I, H, W]`."""
        height, width = x.shape[-2:]
        return cls(F.pad(x, (1, 1 + width % 2, 1, 1 + height % 2)), height, width)

    @property
    def count(self) -> int:
        return self.padded.shape[1]

    @property
    def cells(self) -> int:
        """Windows of a task, those that are cut off counted."""
        return self.count * blocks(self.height, 2) * blocks(self.width, 2)

    def sizes(self) -> tuple[int, int, int]:
        return self.count, self.height, self.width

    def settings(self) -> dict[str, object]:
        """What all kernels here have in common."""
        inputs = self.padded.shape[2]
        return {
            "INPUTS": inputs,
            "DEPTH": max(16, triton.next_power_of_2(9 * inputs)),
            "PRECISION": dot_precision(self.padded),
            "ACC": accumulator(self.padded)[1],
        }


def moments_of(images: Images, weight: Tensor) -> Tensor:
    """Mean and variance of each channel of conv(x, w): `[T, 2, O]`."""
    tasks, outputs = weight.shape[:2]
    pixels = images.count * images.height * images.width
    rows = 128
    tiles = blocks(pixels, rows)
    partial = empty(weight, tasks, 2, outputs, tiles, dtype=accumulator(images.padded)[0])
    device.stem_moments[(tiles, tasks)](
        images.padded, weight, partial, weight.stride(0), pixels, *images.sizes(),
        OUTPUTS=outputs, ROWS=rows, **images.settings(),
    )  # fmt: skip
    return join_moments(partial, pixels, rows)


def normalise(
    images: Images, weight: Tensor, moments: Tensor, gamma: Tensor, beta: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """z and ŷ at each window's maximum, both `[T, N, H/2, W/2, O]`."""
    tasks, outputs = weight.shape[:2]
    count, height, width = images.sizes()
    z = empty(images.padded, tasks, count, height // 2, width // 2, outputs)
    peaks = empty(z, *z.shape)
    device.stem_normalise[(blocks(images.cells, _BLOCK), tasks)](
        images.padded, weight, moments, gamma, beta, z, peaks, weight.stride(0), gamma.stride(0),
        beta.stride(0), images.cells, *images.sizes(), eps, C=outputs, BLOCK=_BLOCK, **images.settings(),
    )  # fmt: skip
    return z, peaks


def pull_back(
    gz: Tensor, images: Images, weight: Tensor, peaks: Tensor, moments: Tensor, gamma: Tensor, beta: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The gradient of the filters `[T, O, I, 3, 3]`, and the sums `[T, 2, C]` gβ and gγ."""
    tasks, outputs = weight.shape[:2]
    dtype = accumulator(gz)[0]
    sums = first_sums(gz, peaks, gamma, beta)
    parts = min(_PARTS // tasks + 1, blocks(images.cells, _BLOCK))
    filters = empty(weight, tasks, parts, *weight.shape[1:], dtype=dtype)
    device.stem_pull_back[(parts, tasks)](
        gz, images.padded, weight, moments, gamma, beta, sums, filters, weight.stride(0), gamma.stride(0),
        beta.stride(0), images.cells, *images.sizes(), eps, C=outputs, BLOCK=_BLOCK, **images.settings(),
    )  # fmt: skip
    return joined(filters), sums


def pull_back_again(
    v: Tensor, c: Tensor, b: Tensor, gz: Tensor, images: Images, weight: Tensor, sums: Tensor,
    moments: Tensor, gamma: Tensor, beta: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """ḡz, w̄ and γ̄ for cotangents v of the filters' gradient, c of gγ and b of gβ."""
    tasks, outputs = weight.shape[:2]
    dtype = accumulator(gz)[0]
    parts = min(_PARTS // tasks + 1, blocks(images.cells, _BLOCK))
    partial = empty(weight, tasks, parts, 3, outputs, dtype=dtype)
    strides = weight.stride(0), v.stride(0), gamma.stride(0), beta.stride(0)
    common = {"C": outputs, "BLOCK": _BLOCK, **images.settings()}
    device.stem_sum_second[(parts, tasks)](
        gz, images.padded, weight, v, moments, gamma, beta, partial, *strides, images.cells, *images.sizes(),
        eps, **common,
    )  # fmt: skip
    ggz, ggamma = empty(gz, *gz.shape), empty(weight, tasks, outputs, dtype=dtype)
    filters = empty(weight, tasks, parts, *weight.shape[1:], dtype=dtype)
    device.stem_pull_back_again[(parts, tasks)](
        gz, images.padded, weight, v, c, b, moments, sums, joined(partial), gamma, beta, ggz, filters, ggamma,
        *strides, c.stride(0), b.stride(0), images.cells, *images.sizes(), eps, **common,
    )  # fmt: skip
    return ggz, joined(filters), ggamma
