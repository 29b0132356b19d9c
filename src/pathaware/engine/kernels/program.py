"""A whole inner gradient of a Conv-N as one node of autograd's graph, computed by the kernels.

Autograd would add gradients that arrive from two sides, fill in zeros and gather views of a point: at 32×32
that is half of all launches. Here every kernel writes its parameter's gradient to its place in the flat
vector, and a Hessian-vector product adds both parts of a sum in one kernel. Biases of convolutions are never
touched, because batch norm subtracts them again: their gradients stay zero. Where batch norm has constant
statistics, there are none.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor

from pathaware.engine import kernels
from pathaware.engine.handwritten import Program
from pathaware.engine.handwritten.conv_block import ConvBlock, PlainConvolution
from pathaware.engine.handwritten.layers import CrossEntropy, Flatten, Linear, Parameters, Saved
from pathaware.engine.kernels import classifier, normalisation, stem, stem_products
from pathaware.engine.kernels.convolution import convolve, pack_all
from pathaware.engine.kernels.launch import SecondStream, constant_moments, sum_pixels
from pathaware.engine.kernels.weight_gradient import join, split, weight_gradient_parts

PRODUCTS: tuple[torch.dtype, ...] = (torch.bfloat16,)
"""How activations are stored where the first block is that of `stem_products` instead of `stem`.

On an H200 an iteration of PAMELA (84×84, 5 shots) takes 7.7 instead of 8.8 ms in bfloat16. In float32 these
kernels were slower.
"""

Images = stem.Images | stem_products.Images


def kernel_program(program: Program | None) -> KernelProgram | None:
    """The same program on the kernels, or None if they do not compute all of it."""
    if program is None or not _computed(program):
        return None
    return KernelProgram(program.links, program.loss, program.layout)


def _computed(program: Program) -> bool:
    """True for conv blocks with convolutions between them, `nn.Flatten`, one linear layer and the
    cross-entropy."""
    if len(program.layers) < 3 or not isinstance(program.loss, CrossEntropy):
        return False
    *blocks, flatten, linear = program.layers
    if not (isinstance(flatten, Flatten) and isinstance(linear, Linear)):
        return False
    shapes = {entry.name: entry.shape for entry in program.layout.entries}
    *of_blocks, _, of_linear = (link.names for link in program.links)
    if "bias" not in of_linear or shapes[of_linear["bias"]][0] > classifier.MAX_CLASSES:
        return False
    return isinstance(blocks[0], ConvBlock) and all(
        isinstance(block, ConvBlock | PlainConvolution)
        and (block.kernel, block.padding) == (3, 1)
        and (block.pool == 2 if isinstance(block, ConvBlock) else "bias" in names)
        and kernels.can_convolve(*shapes[names["weight"]][1::-1], first=i == 0)
        for i, (block, names) in enumerate(zip(blocks, of_blocks, strict=True))
    )


class KernelProgram(Program):
    """Losses, gradients and Hessian-vector products of a Conv-N for all tasks at once, by the kernels."""

    images_prepared: Images | None = None
    moments_prepared: list[Tensor | None] | None = None

    def supports(self, point: Tensor, x: Tensor, y: Tensor) -> bool:
        return self.supports_outputs(point, x) and y.ndim == 2 and y.dtype == torch.long

    def supports_outputs(self, point: Tensor, x: Tensor) -> bool:
        return not x.requires_grad and x.ndim == 5 and kernels.usable(point)

    def one_by_one(self, x: Tensor) -> bool:
        return False  # a GPU has no use for the processor's cache, and small launches leave it idle

    def losses(self, point: Tensor, x: Tensor, y: Tensor, outputs: list[Tensor] | None = None) -> Tensor:
        """Losses `[T]`, without a graph. Nothing is appended to `outputs`: the logits are never written."""
        p = self._by_layer(point)
        z = self._blocks(p, x)[0]
        linear = p[-1]
        parts = classifier.logits(z, linear["weight"], linear["bias"])
        return classifier.losses_only(parts, z, linear["weight"], _labels(y))

    def loss_and_gradient(
        self, point: Tensor, x: Tensor, y: Tensor, outputs: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor, list[Saved]]:
        p = self._by_layer(point)
        gradient = torch.zeros_like(point, memory_format=torch.contiguous_format)
        g = self._by_layer(gradient)
        y = _labels(y)
        z, saved = self._blocks(p, x)
        parts = classifier.logits(z, p[-1]["weight"], p[-1]["bias"])
        losses, gz = classifier.losses_and_gradient(
            parts, z, p[-1]["weight"], y, g[-1]["weight"], g[-1]["bias"]
        )
        self._pull_blocks(p, saved, gz, g)
        return losses, gradient, [*saved, [z, parts, y]]

    def outputs(self, point: Tensor, x: Tensor) -> tuple[Tensor, list[Saved]]:
        p = self._by_layer(point)
        z, saved = self._blocks(p, x)
        parts = classifier.logits(z, p[-1]["weight"], p[-1]["bias"])
        return classifier.joined(parts, p[-1]["weight"].shape[1]), [*saved, [z]]

    def pull(self, point: Tensor, cotangent: Tensor, saved: list[Saved]) -> Tensor:
        p, cotangent = self._by_layer(point), cotangent.contiguous()
        gradient = torch.zeros_like(point, memory_format=torch.contiguous_format)
        g = self._by_layer(gradient)
        *of_blocks, of_classifier = saved
        gz = classifier.pull(cotangent, of_classifier[0], p[-1]["weight"], g[-1]["weight"], g[-1]["bias"])
        self._pull_blocks(p, of_blocks, gz, g)
        of_classifier.append(cotangent)
        return gradient

    def push(self, point: Tensor, direction: Tensor, saved: list[Saved]) -> tuple[Tensor, list[Any]]:
        p, v = self._by_layer(point), self._by_layer(direction.contiguous())
        z = saved[-1][0]
        dz, tangents = self._push_blocks(p, v, saved, z)
        moved = classifier.tangent_logits(z, p[-1]["weight"], dz, v[-1]["weight"], v[-1]["bias"])
        return classifier.joined(moved, p[-1]["weight"].shape[1]), [*tangents, dz]

    def pull_tangent(
        self, point: Tensor, direction: Tensor, saved: list[Saved], tangents: list[Any], dc: Tensor
    ) -> Tensor:
        direction = direction.contiguous()
        p, v = self._by_layer(point), self._by_layer(direction)
        product = torch.zeros_like(direction)
        hv = self._by_layer(product)
        z, cotangent = saved[-1]
        dg = classifier.pull_tangent(
            cotangent, dc.contiguous(), z, tangents[-1], p[-1]["weight"], v[-1]["weight"],
            hv[-1]["weight"], hv[-1]["bias"],
        )  # fmt: skip
        self._pull_tangent_blocks(p, v, saved, tangents, dg, hv)
        return product

    def hvp(self, point: Tensor, direction: Tensor, saved: list[Saved]) -> Tensor:
        direction = direction.contiguous()
        p, v = self._by_layer(point), self._by_layer(direction)
        product = torch.zeros_like(direction)
        hv = self._by_layer(product)
        z, parts, y = saved[-1]
        dz, tangents = self._push_blocks(p, v, saved, z)
        linear, along, out = p[-1], v[-1], hv[-1]
        moved = classifier.tangent_logits(z, linear["weight"], dz, along["weight"], along["bias"])
        dg = classifier.hvp(
            parts, moved, z, dz, linear["weight"], along["weight"], y, out["weight"], out["bias"]
        )
        self._pull_tangent_blocks(p, v, saved, tangents, dg, hv)
        return product

    def _pull_blocks(self, p: list[Parameters], saved: list[Saved], gz: Any, g: list[Parameters]) -> None:
        """Write the gradients of all blocks for that of the last one's output."""
        filters, blocks = FilterGradients(gz), self.blocks(gz.dtype)
        for i in reversed(range(len(blocks))):
            gz = blocks[i].backward(p[i], saved[i], gz, g[i], filters)
        filters.wait()

    def _push_blocks(
        self, p: list[Parameters], v: list[Parameters], saved: list[Saved], z: Tensor
    ) -> tuple[Tensor, list[Saved]]:
        """The tangent of the last block's output z, and what each block keeps for `_pull_tangent_blocks`."""
        dz: Any = None
        tangents: list[Saved] = []
        filters, blocks = self._filters(v, z), self.blocks(z.dtype)
        for i, block in enumerate(blocks):
            dz, tangent = block.tangent(p[i], v[i], filters[i], saved[i], dz)
            tangents.append(tangent)
        return dz, tangents

    def _pull_tangent_blocks(
        self, p: list[Parameters], v: list[Parameters], saved: list[Saved], tangents: list[Any], dg: Any,
        hv: list[Parameters],
    ) -> None:  # fmt: skip
        """Write the derivatives of the gradients that `_pull_blocks` writes."""
        gradients, blocks = FilterGradients(dg), self.blocks(dg.dtype)
        for i in reversed(range(len(blocks))):
            dg = blocks[i].hvp(p[i], v[i], saved[i], tangents[i], dg, hv[i], gradients)
        gradients.wait()

    def blocks(self, dtype: torch.dtype) -> list[Any]:
        """The blocks for activations that are stored in this dtype."""
        first, *others = self.layers[:-2]
        start = ProductStem(first.eps) if self._by_products(dtype) else Stem(first.eps)
        return [start, *(Block(b.eps) if isinstance(b, ConvBlock) else Between() for b in others)]

    def prepare(self, x: Tensor) -> KernelProgram:
        """The same program for these images only. What it knows of them is computed here, once per path."""
        prepared = copy(self)
        prepared.images_prepared = self._stored(x.to(kernels.storage(x)))
        prepared.moments_prepared = self._constant_moments()
        return prepared

    def _blocks(self, p: list[Parameters], images: Tensor) -> tuple[Tensor, list[Saved]]:
        """The output of the last block, and what each block saved."""
        saved: list[Saved] = []
        x: Any = self.images_prepared or self._stored(images.to(kernels.storage(p[0]["weight"])))
        blocks, packed = self.blocks(x.stored.dtype), self._filters(p, x.stored)
        moments = self.moments_prepared or self._constant_moments()
        for block, own, filters, constant in zip(blocks, p, packed, moments, strict=False):
            x, saved_by_block = block.forward(own, filters, x, constant)
            saved.append(saved_by_block)
        return x, saved

    def _constant_moments(self) -> list[Tensor | None]:
        """The statistics of each block `[2, C]` where they are constant, else None."""
        frozen = [block.frozen for block in self.layers[:-2]]
        found = iter(constant_moments([(f.running_mean, f.running_var) for f in frozen if f is not None]))
        return [None if f is None else next(found) for f in frozen]

    def _by_products(self, dtype: torch.dtype) -> bool:
        """True if the first block is that of `stem_products`, which needs the statistics of the images."""
        return dtype in PRODUCTS and self.layers[0].frozen is None

    def _stored(self, x: Tensor) -> Images:
        """Images `[T, N, I, H, W]` as the first block reads them."""
        return stem_products.Images.of(x) if self._by_products(x.dtype) else stem.Images.of(x)

    def _filters(self, p: list[Parameters], like: Tensor) -> list[Any]:
        """The filters of each block as `convolve` reads them; the first block takes them as they are."""
        layers = list(zip(self.layers, p, strict=True))[1:-2]
        of_kind = {
            kind: iter(pack_all([own["weight"] for layer, own in layers if isinstance(layer, kind)], like))
            for kind in (ConvBlock, PlainConvolution)  # each equally spaced
        }
        return [None, *(next(of_kind[type(layer)]) for layer, _ in layers)]


def _sides(padded: Tensor, pooled: Tensor) -> tuple[int, int]:
    """Height and width of the images that were padded, for the block's output `[T, N, H/2, W/2, C]`."""
    even = padded.shape[-2] - 2, padded.shape[-1] - 2  # an odd side was padded by one more
    height, width = (side - (side // 2 - half) for side, half in zip(even, pooled.shape[2:4], strict=True))
    return height, width


def _labels(y: Tensor) -> Tensor:
    """Make each task's labels contiguous, as the kernel requires."""
    return y if y.stride(1) == 1 else y.contiguous()


class FilterGradients:
    """Gradients of the filters of several blocks. Nothing else in a pass waits for them."""

    def __init__(self, activations: Tensor) -> None:
        self.beside = SecondStream(activations)
        self.parts: list[Tensor] = []
        self.outs: list[Tensor] = []

    def add(self, out: Tensor, *factors: Tensor) -> None:
        """Compute the parts of one block's gradient, which belongs to `out`."""
        self.parts.append(self.beside.run(weight_gradient_parts, *factors))
        self.outs.append(out)

    def join(self) -> None:
        """Add the parts of all gradients; the first block, which has none, calls this."""
        self.beside.run(join, self.parts, self.outs)

    def wait(self) -> None:
        """Let the current stream wait for the gradients."""
        self.beside.wait()


class Block:
    """A block on `x [T, N, H, W, C]`; see `normalisation` for the symbols.

    `constant` are the moments `[2, C]` of batch norm if they do not come from the images.
    """

    def __init__(self, eps: float) -> None:
        self.eps = eps

    def forward(
        self, p: Parameters, filters: tuple[Tensor, Tensor], x: Tensor, constant: Tensor | None
    ) -> tuple[Tensor, Saved]:
        forward, reverse = filters
        y, of_y = convolve(x, forward, stats=constant is None)
        moments = constant if of_y is None else of_y
        assert moments is not None
        z, peaks = normalisation.normalise(self._norm(p, y, moments))
        return z, [x, forward, reverse, y, moments, peaks]

    def backward(
        self, p: Parameters, saved: Saved, gz: Tensor, g: Parameters, filters: FilterGradients
    ) -> Tensor:
        x, _, reverse, y, moments, peaks = saved
        gy, sums = normalisation.backward(self._norm(p, y, moments), gz, peaks, g["gain"], g["shift"])
        factors = split([x, gy])
        filters.add(g["weight"], *factors)
        saved += [gz, gy, sums, *factors]
        return convolve(gy, reverse)[0]

    def tangent(
        self, p: Parameters, v: Parameters, filters: tuple[Tensor, Tensor], saved: Saved, dx: Tensor
    ) -> tuple[Tensor, Saved]:
        x, forward, _, y, moments, _, gz, *_ = saved
        along, back = filters
        u = convolve(dx, forward, x, along)[0]
        dz, second = normalisation.tangent(self._norm(p, y, moments), u, v["gain"], v["shift"], gz)
        return dz, [dx, u, back, second]

    def hvp(
        self, p: Parameters, v: Parameters, saved: Saved, tangent: Saved, dgz: Tensor, hv: Parameters,
        filters: FilterGradients,
    ) -> Tensor:  # fmt: skip
        _, _, reverse, y, moments, peaks, gz, gy, sums, x_split, gy_split = saved
        dx, u, back, second = tangent
        norm, out = self._norm(p, y, moments), (hv["gain"], hv["shift"])
        dgy = normalisation.hvp(norm, dgz, u, v["gain"], gz, peaks, sums, second, *out)
        dgy_split, dx_split = split([dgy, dx])
        filters.add(hv["weight"], x_split, dgy_split, dx_split, gy_split)
        return convolve(dgy, reverse, gy, back)[0]

    def _norm(self, p: Parameters, y: Tensor, moments: Tensor) -> normalisation.Norm:
        return normalisation.Norm(y, moments, p["gain"], p["shift"], self.eps)


class Between:
    """A convolution with bias on `x [T, N, H, W, C]`, alone between blocks."""

    def forward(
        self, p: Parameters, filters: tuple[Tensor, Tensor], x: Tensor, constant: None
    ) -> tuple[Tensor, Saved]:
        forward, reverse = filters
        return convolve(x, forward, bias=p["bias"])[0], [x, forward, reverse]

    def backward(
        self, p: Parameters, saved: Saved, gz: Tensor, g: Parameters, filters: FilterGradients
    ) -> Tensor:
        x, _, reverse = saved
        factors = split([x, gz])
        filters.add(g["weight"], *factors)
        sum_pixels(gz, g["bias"])
        saved += [gz, *factors]
        return convolve(gz, reverse)[0]

    def tangent(
        self, p: Parameters, v: Parameters, filters: tuple[Tensor, Tensor], saved: Saved, dx: Tensor
    ) -> tuple[Tensor, Saved]:
        along, back = filters
        return convolve(dx, saved[1], saved[0], along, bias=v["bias"])[0], [dx, back]

    def hvp(
        self, p: Parameters, v: Parameters, saved: Saved, tangent: Saved, dgz: Tensor, hv: Parameters,
        filters: FilterGradients,
    ) -> Tensor:  # fmt: skip
        _, _, reverse, gz, x_split, gz_split = saved
        dx, back = tangent
        dgz_split, dx_split = split([dgz, dx])
        filters.add(hv["weight"], x_split, dgz_split, dx_split, gz_split)
        sum_pixels(dgz, hv["bias"])
        return convolve(dgz, reverse, gz, back)[0]


class Stem:
    """The first block, on images `[T, N, I, H, W]`, which are constant."""

    def __init__(self, eps: float) -> None:
        self.eps = eps

    def forward(
        self, p: Parameters, filters: None, images: stem.Images, constant: Tensor | None
    ) -> tuple[Tensor, Saved]:
        moments = stem.moments_of(images, p["weight"]) if constant is None else constant
        block = stem.FirstBlock(images, p["weight"], moments, p["gain"], p["shift"], self.eps)
        z, peaks = stem.normalise(block)
        return z, [images.stored, moments, peaks]

    def backward(
        self, p: Parameters, saved: Saved, gz: Tensor, g: Parameters, gradients: FilterGradients
    ) -> None:
        gradients.join()
        sums = stem.backward(self._block(p, saved), gz, saved[2], g["weight"], g["gain"], g["shift"])
        saved += [gz, sums]

    def tangent(
        self, p: Parameters, v: Parameters, filters: None, saved: Saved, dx: None
    ) -> tuple[Tensor, Saved]:
        block, gz = self._block(p, saved), saved[3]
        dz, second = stem.tangent(block, v["weight"], v["gain"], v["shift"], gz)
        return dz, [second]

    def hvp(
        self, p: Parameters, v: Parameters, saved: Saved, tangent: Saved, dgz: Tensor, hv: Parameters,
        gradients: FilterGradients,
    ) -> None:  # fmt: skip
        gradients.join()
        _, _, peaks, gz, sums = saved
        of_first = gz, peaks, sums, tangent[0]
        out = hv["weight"], hv["gain"], hv["shift"]
        stem.hvp(self._block(p, saved), dgz, v["weight"], v["gain"], *of_first, *out)

    def _block(self, p: Parameters, saved: Saved) -> stem.FirstBlock:
        padded, moments, peaks = saved[:3]
        images = stem.Images(padded, *_sides(padded, peaks))
        return stem.FirstBlock(images, p["weight"], moments, p["gain"], p["shift"], self.eps)


class ProductStem:
    """`Stem` by the products of the images' values."""

    def __init__(self, eps: float) -> None:
        self.eps = eps

    def forward(
        self, p: Parameters, filters: None, images: stem_products.Images, constant: None
    ) -> tuple[Tensor, Saved]:
        packed = stem_products.Filters.of(p["weight"], images)
        z, where = stem_products.forward(images, packed, p["gain"], p["shift"], self.eps)
        return z, [images.stored, images.products, packed.packed, packed.moments, where]

    def backward(
        self, p: Parameters, saved: Saved, gz: Tensor, g: Parameters, gradients: FilterGradients
    ) -> None:
        gradients.join()
        images, filters, where = self._constants(saved)
        sums = stem_products.backward(
            gz, where, images, filters, p["gain"], self.eps, g["weight"], g["gain"], g["shift"]
        )
        saved.append(sums)

    def tangent(
        self, p: Parameters, v: Parameters, filters: None, saved: Saved, dx: None
    ) -> tuple[Tensor, Saved]:
        images, packed, where = self._constants(saved)
        dz = stem_products.tangent(
            v["weight"], v["gain"], v["shift"], where, images, packed, p["gain"], self.eps
        )
        return dz, []

    def hvp(
        self, p: Parameters, v: Parameters, saved: Saved, tangent: Saved, dgz: Tensor, hv: Parameters,
        gradients: FilterGradients,
    ) -> None:  # fmt: skip
        gradients.join()
        images, filters, where = self._constants(saved)
        stem_products.hvp(
            dgz, v["weight"], v["gain"], saved[-1], where, images, filters, p["gain"], self.eps,
            hv["weight"], hv["gain"], hv["shift"],
        )  # fmt: skip

    @staticmethod
    def _constants(saved: Saved) -> tuple[stem_products.Images, stem_products.Filters, Tensor]:
        stored, products, packed, moments, where = saved[:5]
        return stem_products.Images(stored, products), stem_products.Filters(packed, moments), where
