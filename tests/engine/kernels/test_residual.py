"""Wide and residual networks, channels last, against PyTorch's layers: on a GPU or in the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware import Episodes, Layout, MetaLearner, Pamela
from pathaware.engine import kernels
from pathaware.engine.batched import convolutions
from pathaware.models import resnet12
from tests.conftest import distance, meta_gradient, scatter
from tests.engine.kernels.checks import CLOSE, CUDA, DEVICE, DTYPE, assert_same, leaf

pytest.importorskip("triton")
from pathaware.engine.kernels import convolution, launch, weight_gradient
from pathaware.engine.kernels.functions import Convolution, Join, LeakyNorm


def per_task(operation: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """The operation on images of one task after another, in PyTorch's order of axes."""
    first = [i.permute(0, 1, 4, 2, 3) if i.ndim == 5 and i is inputs[0] else i for i in inputs]
    return torch.stack([operation(*task) for task in zip(*first, strict=True)]).permute(0, 1, 3, 4, 2)


@pytest.mark.parametrize(("channels", "slope"), [(16, 0.1), (70, 1.0), (5, 0.0)])
def test_a_leaky_norm_and_its_two_derivatives_are_those_of_the_layers(channels: int, slope: float):
    def plain(y: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return F.leaky_relu(F.batch_norm(y, None, None, gamma, beta, training=True), slope)

    inputs = leaf(2, 3, 5, 7, channels), leaf(2, channels), leaf(2, channels)
    assert_same(lambda *given: LeakyNorm.apply(*given, 1e-5, slope), partial(per_task, plain), *inputs)


@pytest.mark.parametrize(("channels", "slope", "size"), [(16, 0.1, (5, 7)), (70, 0.0, (4, 2))])
def test_the_end_of_a_residual_block_and_its_derivatives_are_those_of_the_layers(channels, slope, size):
    def plain(x: Tensor, y: Tensor) -> Tensor:
        images = F.leaky_relu(x + y, slope).flatten(0, 1).permute(0, 3, 1, 2)
        return F.max_pool2d(images, 2).permute(0, 2, 3, 1).unflatten(0, x.shape[:2])

    inputs = leaf(2, 3, *size, channels), leaf(2, 3, *size, channels)
    assert_same(lambda *given: Join.apply(*given, slope), plain, *inputs)


def test_kernels_convolve_with_more_channels_than_a_program_computes(monkeypatch):
    monkeypatch.setattr(convolution, "WIDE", 16)
    monkeypatch.setattr(weight_gradient, "WIDE", 16)
    inputs = leaf(2, 2, 3, 4, 16), leaf(2, 32, 16, 3, 3)
    plain = partial(per_task, partial(F.conv2d, padding=1))
    assert_same(lambda *given: Convolution.apply(*given, False)[0], plain, *inputs)
    y, moments = Convolution.apply(*inputs, True)
    variance, mean = torch.var_mean(y.flatten(1, 3), 1, correction=0)
    assert distance(moments, torch.stack([mean, variance], 1)) < CLOSE


@pytest.mark.parametrize(("images", "size"), [(2, 3), (10, 31)])
def test_pixels_are_summed_over_few_and_many_programs(images, size):
    values, total = leaf(2, images, size, size, 16).detach(), leaf(2, 20).detach()
    launch.sum_pixels(values, total[:, 3:15])  # a part of a vector of all parameters
    assert distance(total[:, 3:15], values.double().sum((1, 2, 3))[:, :12]) < CLOSE


CONVOLUTIONS = {
    "plain": nn.Conv2d(6, 8, 3, padding=1),
    "one pixel": nn.Conv2d(5, 8, 1),
    "stride and groups": nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2),
    "dilation": nn.Conv2d(5, 7, 3, padding="same", dilation=2),
    "no padding": nn.Conv2d(4, 7, (3, 2), padding="valid"),
    "wide": nn.Conv2d(228, 3, 3, padding=1),
}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_any_kind_have_the_derivatives_of_the_layer(name, shared):
    module = CONVOLUTIONS[name]
    kind = convolutions.kind_of(module, shared=shared)
    assert kind is not None
    settings = module.stride, module.padding, module.dilation, module.groups
    lead = () if shared else (2,)

    def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight, bias = (p.expand(2, *p.shape) if shared else p for p in (weight, bias))
        return per_task(lambda *task: F.conv2d(*task, *settings), x, weight, bias)

    filters = leaf(*lead, *module.weight.shape), leaf(*lead, *module.bias.shape)
    ours = lambda *given: convolutions.convolve(*given, kind)[0]  # noqa: E731
    assert_same(ours, plain, leaf(2, 3, 6, 7, module.in_channels), *filters)


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (nn.Conv2d(6, 8, 3, padding=1), convolutions.ProductFilters),
        (nn.Conv2d(640, 8, 1), convolutions.ProductFilters),
        (nn.Conv2d(64, 128, 3, padding=1), convolutions.KernelFilters),
        (nn.Conv2d(256, 512, 3, padding=1), convolutions.OwnFilters),
        (nn.Conv2d(320, 640, 3, padding=1), convolutions.OwnFilters),
    ],
)
def test_wide_filters_are_taken_task_by_task(module, kind):
    assert type(convolutions.kind_of(module, shared=False)) is kind


@pytest.mark.parametrize("name", ["plain", "stride and groups", "wide"])
def test_a_gradient_of_filters_alone_computes_no_other(name, monkeypatch):
    module = CONVOLUTIONS[name]
    kind = convolutions.kind_of(module, shared=False)
    images, weight = leaf(2, 3, 6, 7, module.in_channels).detach(), leaf(2, *module.weight.shape)
    shared = leaf(1)
    calls, transposed = [], type(kind).transposed
    monkeypatch.setattr(type(kind), "transposed", lambda *given: calls.append(1) or transposed(*given))

    def ours(x: Tensor) -> Tensor:
        return convolutions.convolve(x, weight, None, kind)[0]

    def theirs(x: Tensor) -> Tensor:
        settings = None, module.stride, module.padding, module.dilation, module.groups
        return per_task(lambda *task: F.conv2d(*task, *settings), x, weight)

    second = []
    for operation in (ours, theirs):
        z = operation(images * shared)
        (inner,) = torch.autograd.grad(z.square().sum(), weight, create_graph=True)
        assert not calls
        second.append(torch.autograd.grad(inner.square().sum(), [shared, weight]))
        calls.clear()
    for one, other in zip(*second, strict=True):
        assert distance(one, other) < CLOSE


def test_an_even_filter_of_the_same_size_is_left_to_pytorch():
    assert convolutions.kind_of(nn.Conv2d(3, 3, 2, padding="same"), shared=True) is None


@pytest.mark.parametrize("widths", [(4, 4, 4, 6), pytest.param((4, 4, 16, 32), marks=pytest.mark.slow)])
def test_a_residual_network_whose_last_block_adapts_agrees_with_the_loop(widths, monkeypatch):
    """With numbers of channels that the kernels do not store, and with such that they do."""
    monkeypatch.setattr(kernels, "usable", lambda point: kernels._enabled())
    torch.manual_seed(0)
    model = resnet12(2, size=16, widths=widths)
    layout = Layout.of(model, lambda name: name.startswith(("3", "6")))
    rule = Pamela(layout, 1, rate=0.1, q_start=0.5, skip=1)
    batched, loop = (
        scatter(MetaLearner(model, rule, F.cross_entropy, execution=execution)).to(DEVICE, DTYPE)
        for execution in ("batched", "loop")
    )
    labels = torch.arange(2).expand(2, -1)
    images = torch.randn(2, 2, 3, 16, 16), torch.randn(2, 2, 3, 16, 16)
    episodes = Episodes(images[0], labels, images[1], labels)
    episodes = Episodes(
        *(t.to(DEVICE, DTYPE if t.is_floating_point() else None) for t in episodes.tensors()[:4])
    )
    runs: list[str] = []
    for name in ("LeakyNorm", "Join"):
        original = getattr(kernels.functions, name).apply
        monkeypatch.setattr(
            getattr(kernels.functions, name),
            "apply",
            lambda *given, name=name, original=original: runs.append(name) or original(*given),
        )
    ours = meta_gradient(batched, episodes)
    assert runs.count("Join") == 3 + 1 + 1 + 4  # support set, step, its end, queries
    assert runs.count("LeakyNorm") == 4 * runs.count("Join")
    assert distance(ours, meta_gradient(loop, episodes)) < (1e-3 if CUDA else 1e-10)
