"""The last linear layer and the cross-entropy of T tasks, with gradient and Hessian-vector product.

With images z `[N, P, C]` of P pixels, read as rows of F = C·P features in the order of `nn.Flatten`:

    l = z Wᵀ + b,   L = mean over N of −log softmax(l)[y],   g = (softmax(l) − onehot(y)) / N
    gW = gᵀ z,      gb = Σ g,      gz = g W

and, along a direction in which z changes by dz, W by V and b by v, with p = softmax(l):

    dl = dz Wᵀ + z Vᵀ + v,     dg = p (dl − Σ p dl) / N
    d(gW) = dgᵀ z + gᵀ dz,     d(gb) = Σ dg,     d(gz) = dg W + g V

One kernel computes parts of l or dl, another everything else. For other functions of the logits, `pull` and
`pull_tangent` take their g and dg. A negative label is ignored and does
not count in N, as in PyTorch; a label beyond the last class makes the loss NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pathaware.engine.kernels.launch import accumulator, blocks, dot_precision, empty

MAX_CLASSES = 64
_ROWS = 32
"""Examples that a program takes at once."""
_DEPTH = 64
"""Features that a program takes at once."""
_PARTS = 8
"""Largest number of parts of the logits."""


def logits(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Parts of the logits, `[T, parts, N, K]`, where K is the number of classes rounded up."""
    return _products(z, weight, bias, z, weight, terms=1)


def tangent_logits(
    z: Tensor, weight: Tensor, dz: Tensor, direction: Tensor, bias_direction: Tensor
) -> Tensor:
    """Parts of dl, `[T, parts, N, K]`."""
    return _products(z, direction, bias_direction, dz, weight, terms=2)


def losses_and_gradient(
    parts: Tensor, z: Tensor, weight: Tensor, targets: Tensor, gw: Tensor, gb: Tensor
) -> tuple[Tensor, Tensor]:
    """Losses `[T]` and gz; writes the gradients of the weight `[T, classes, F]` and the bias."""
    losses, gz = empty(parts, len(z)), empty(z, *z.shape)
    _finish(parts, parts, z, z, weight, weight, targets, losses, gz, gw, gb, terms=1)
    return losses, gz


def losses_only(parts: Tensor, z: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Losses `[T]`."""
    losses = empty(parts, len(z))
    _finish(parts, parts, z, z, weight, weight, targets, losses, z, losses, losses, terms=0)
    return losses


def hvp(
    parts: Tensor, tangents: Tensor, z: Tensor, dz: Tensor, weight: Tensor, direction: Tensor,
    targets: Tensor, gw: Tensor, gb: Tensor,
) -> Tensor:  # fmt: skip
    """d(gz), for parts of l and of dl; writes the derivatives of the gradients of the weight and the bias."""
    gz = empty(z, *z.shape)
    _finish(parts, tangents, z, dz, weight, direction, targets, parts, gz, gw, gb, terms=2)
    return gz


def joined(parts: Tensor, classes: int) -> Tensor:
    """The logits `[T, N, classes]`, or their derivative, from their parts."""
    return parts.sum(1)[..., :classes]


def pull(g: Tensor, z: Tensor, weight: Tensor, gw: Tensor, gb: Tensor) -> Tensor:
    """gz for a given g `[T, N, classes]`; writes the gradients of the weight and the bias."""
    gz = empty(z, *z.shape)
    _finish(g[:, None], g[:, None], z, z, weight, weight, g, g, gz, gw, gb, terms=1, given=True)
    return gz


def pull_tangent(
    g: Tensor, dg: Tensor, z: Tensor, dz: Tensor, weight: Tensor, direction: Tensor, gw: Tensor, gb: Tensor
) -> Tensor:
    """d(gz) for a given g and dg; writes the derivatives of the gradients of the weight and the bias."""
    gz = empty(z, *z.shape)
    _finish(g[:, None], dg[:, None], z, dz, weight, direction, g, g, gz, gw, gb, terms=2, given=True)
    return gz


def _products(z: Tensor, weight: Tensor, bias: Tensor, z2: Tensor, weight2: Tensor, terms: int) -> Tensor:
    """Parts of z Wᵀ + b, or of z Wᵀ + b + z2 W2ᵀ, `[T, parts, N, K]`."""
    tasks, count, height, width, channels = z.shape
    features = height * width * channels
    share = blocks(blocks(features, _DEPTH), _PARTS) * _DEPTH
    parts, classes = blocks(features, share), _rounded(weight.shape[1])
    dtype, acc = accumulator(z)
    out = empty(z, tasks, parts, count, classes, dtype=dtype)
    logits_kernel[(blocks(count, _ROWS), parts, tasks)](
        z, weight, bias, z2, weight2, out, weight.stride(0), bias.stride(0), weight2.stride(0), count, share,
        height * width, CLASSES=weight.shape[1], K=classes, WIDTH=weight.shape[2] // (height * width),
        C=channels, ROWS=_ROWS, DEPTH=_DEPTH, TERMS=terms, PRECISION=dot_precision(weight), ACC=acc,
    )  # fmt: skip
    return out


def _finish(
    parts: Tensor, tangents: Tensor, z: Tensor, dz: Tensor, weight: Tensor, direction: Tensor,
    targets: Tensor, losses: Tensor, gz: Tensor, gw: Tensor, gb: Tensor, terms: int, given: bool = False,
) -> None:  # fmt: skip
    tasks, count, height, width, channels = z.shape
    pixels = height * width
    chunks = blocks(pixels * channels, _DEPTH) if terms else 1
    classifier_kernel[(chunks, tasks)](
        parts, tangents, z, dz, weight, direction, targets, losses, gz, gw, gb, weight.stride(0),
        direction.stride(0), targets.stride(0), gw.stride(0), gb.stride(0), count, parts.shape[1],
        tangents.shape[1], pixels,
        CLASSES=weight.shape[1], K=_rounded(weight.shape[1]), WIDTH=weight.shape[2] // pixels, C=channels,
        ROWS=_ROWS, DEPTH=_DEPTH, TERMS=terms, GIVEN=given, PARTS=triton.next_power_of_2(parts.shape[1]),
        PRECISION=dot_precision(weight), ACC=accumulator(z)[1],
    )  # fmt: skip


def _rounded(classes: int) -> int:
    return max(16, int(triton.next_power_of_2(classes)))


@triton.jit
def _weights(weight, f, pixels, CLASSES: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr):
    """Where the weights of features f, counted as z stores them, lie for each class, `[K, DEPTH]`; and which
    of them exist."""
    k = tl.arange(0, K)
    c = f % C
    pixel = f // C
    at = k[:, None] * (WIDTH * pixels) + (c * pixels + pixel)[None, :]
    return weight + at, (k < CLASSES)[:, None] & ((c < WIDTH) & (pixel < pixels))[None, :]


@triton.jit
def logits_kernel(
    z, weight, bias, z2, weight2, out, stride, bias_stride, stride2, count, share, pixels,
    CLASSES: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr,
    DEPTH: tl.constexpr, TERMS: tl.constexpr, PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    task = tl.program_id(2).to(tl.int64)
    features = pixels * C
    k = tl.arange(0, K)
    total = tl.zeros((ROWS, K), ACC)
    if part == 0:
        total += tl.load(bias + task * bias_stride + k, mask=k < CLASSES, other=0.0).to(ACC)[None, :]
    rows = (task * count + n)[:, None] * features
    for first in range(part * share, tl.minimum(part * share + share, features), DEPTH):
        f = first + tl.arange(0, DEPTH)
        mask = (n < count)[:, None] & (f < features)[None, :]
        at, real = _weights(weight + task * stride, f, pixels, CLASSES, K, WIDTH, C)
        w = tl.load(at, mask=real, other=0.0).to(ACC)
        a = tl.load(z + rows + f[None, :], mask=mask, other=0.0).to(ACC)
        total = tl.dot(a, tl.trans(w), total, input_precision=PRECISION, out_dtype=ACC)
        if TERMS == 2:
            at, real = _weights(weight2 + task * stride2, f, pixels, CLASSES, K, WIDTH, C)
            w = tl.load(at, mask=real, other=0.0).to(ACC)
            a = tl.load(z2 + rows + f[None, :], mask=mask, other=0.0).to(ACC)
            total = tl.dot(a, tl.trans(w), total, input_precision=PRECISION, out_dtype=ACC)
    at = ((task * tl.num_programs(1) + part) * count + n)[:, None] * K + k[None, :]
    tl.store(out + at, total, mask=(n < count)[:, None])


@triton.jit
def _joined(parts, number, task, n, count, K: tl.constexpr, PARTS: tl.constexpr):
    """The sum of the parts `[T, number, N, K]` in rows n."""
    p = tl.arange(0, PARTS)[:, None, None]
    at = ((task * number + p) * count + n[None, :, None]) * K + tl.arange(0, K)[None, None, :]
    return tl.sum(tl.load(parts + at, mask=(p < number) & (n < count)[None, :, None], other=0.0), 0)


@triton.jit
def classifier_kernel(
    parts, tangents, z, dz, weight, direction, targets, losses, gz, gw, gb, stride, direction_stride,
    targets_stride, gw_stride, gb_stride, count, number, tangent_number, pixels,
    CLASSES: tl.constexpr, K: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr,
    DEPTH: tl.constexpr, TERMS: tl.constexpr, GIVEN: tl.constexpr, PARTS: tl.constexpr,
    PRECISION: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """TERMS is 0 for losses only, 1 with their gradient, 2 for the derivative of the gradient.

    With GIVEN, `parts` and `tangents` are g and dg `[T, N, CLASSES]`, and there are no labels.
    """
    chunk = tl.program_id(0)
    task = tl.program_id(1).to(tl.int64)
    features = pixels * C
    f = chunk * DEPTH + tl.arange(0, DEPTH)
    k = tl.arange(0, K)
    known = (k < CLASSES)[None, :]
    at, real = _weights(weight + task * stride, f, pixels, CLASSES, K, WIDTH, C)
    w = tl.load(at, mask=real, other=0.0).to(ACC)
    if TERMS == 2:
        at, real = _weights(direction + task * direction_stride, f, pixels, CLASSES, K, WIDTH, C)
        dw = tl.load(at, mask=real, other=0.0).to(ACC)
    to_w = tl.zeros((K, DEPTH), ACC)
    to_b = tl.zeros((K,), ACC)
    loss = tl.zeros((ROWS,), ACC)
    labelled = tl.zeros((ROWS,), ACC)
    for start in range(0, count if not GIVEN else 0, ROWS):
        n = start + tl.arange(0, ROWS)
        labelled += (tl.load(targets + task * targets_stride + n, mask=n < count, other=-1) >= 0).to(ACC)
    real_count = tl.sum(labelled, 0)
    for start in range(0, count, ROWS):
        n = start + tl.arange(0, ROWS)
        if GIVEN:
            each = (task * count + n)[:, None] * CLASSES + k[None, :]
            g = tl.load(parts + each, mask=(n < count)[:, None] & known, other=0.0).to(ACC)
        else:
            label = tl.load(targets + task * targets_stride + n, mask=n < count, other=-1)
            scores = tl.where(known, _joined(parts, number, task, n, count, K, PARTS), float("-inf"))
            top = tl.max(scores, 1)
            odds = tl.exp(scores - top[:, None])
            total = tl.sum(odds, 1)
            chosen = k[None, :] == label[:, None]
            counted = label >= 0
            at_label = tl.sum(tl.where(chosen, scores, 0.0), 1)
            at_label = tl.where(label < CLASSES, at_label, float("nan"))
            loss += tl.where(counted, tl.log(total) + top - at_label, 0.0)
            share = (counted.to(ACC) / real_count)[:, None]
            p = odds / total[:, None]
            g = share * (p - tl.where(chosen, 1.0, 0.0))
        mask = (n < count)[:, None] & (f < features)[None, :]
        rows = (task * count + n)[:, None] * features + f[None, :]
        if TERMS > 0:
            a = tl.load(z + rows, mask=mask, other=0.0).to(ACC)
        if TERMS == 1:
            to_b += tl.sum(g, 0)
            to_w = tl.dot(tl.trans(g), a, to_w, input_precision=PRECISION, out_dtype=ACC)
            back = tl.dot(g, w, input_precision=PRECISION, out_dtype=ACC)
            tl.store(gz + rows, back.to(gz.dtype.element_ty), mask=mask)
        if TERMS == 2:
            if GIVEN:
                dg = tl.load(tangents + each, mask=(n < count)[:, None] & known, other=0.0).to(ACC)
            else:
                moved = p * _joined(tangents, tangent_number, task, n, count, K, PARTS)
                dg = share * (moved - p * tl.sum(moved, 1)[:, None])
            da = tl.load(dz + rows, mask=mask, other=0.0).to(ACC)
            to_b += tl.sum(dg, 0)
            to_w = tl.dot(tl.trans(dg), a, to_w, input_precision=PRECISION, out_dtype=ACC)
            to_w = tl.dot(tl.trans(g), da, to_w, input_precision=PRECISION, out_dtype=ACC)
            back = tl.dot(dg, w, input_precision=PRECISION, out_dtype=ACC)
            back = tl.dot(g, dw, back, input_precision=PRECISION, out_dtype=ACC)
            tl.store(gz + rows, back.to(gz.dtype.element_ty), mask=mask)
    if TERMS > 0:
        at, real = _weights(gw + task * gw_stride, f, pixels, CLASSES, K, WIDTH, C)
        tl.store(at, to_w, mask=real)
    if chunk == 0:
        if TERMS > 0:
            tl.store(gb + task * gb_stride + k, to_b, mask=k < CLASSES)
        if TERMS < 2 and not GIVEN:
            tl.store(losses + task, tl.sum(loss, 0) / real_count)
