"""Flat layouts, coefficients that groups of parameters share, and copies of networks."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from pathaware import Layout, MetaSGD, Pamela, UsageError
from pathaware.core.parameters import GroupBroadcast, clone_with_parameters
from pathaware.models import conv4


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_conv4_has_the_parameters_of_the_papers_table_5():
    model = conv4(5, size=84)
    assert count(model) == 121_093
    assert count(model) + count(MetaSGD(model)) == 242_186
    rule = Pamela(model, 5, skip=2)
    assert rule.q.numel() == 41_305
    assert rule.p.numel() == 10


def test_a_filter_shares_its_coefficient_with_its_bias_gain_and_shift():
    layout = Layout.of(conv4(5, size=32, width=8))
    index, _ = layout.index("filter")
    views = layout.views(index)
    for name in ("conv2.bias", "norm2.weight", "norm2.bias"):
        assert torch.equal(views[name], views["conv2.weight"][:, 0, 0, 0])
    assert len(views["head.weight"].unique()) == views["head.weight"].numel()


@pytest.mark.parametrize(
    ("granularity", "coefficients"),
    [("model", 1), ("layer", 3), ("tensor", 10), ("filter", 2 * 4 + 51), ("tensor-channel", 2 * 16 + 2 * 3)],
)
def test_coefficients_are_counted_by_granularity(granularity, coefficients):
    layout = Layout.of(conv4(3, size=8, width=4, blocks=2))
    index, total = layout.index(granularity)
    assert total == coefficients
    assert index.unique().numel() == total
    assert index.shape == (len(layout),)


def test_a_norm_belongs_to_the_layer_it_follows():
    layers = Layout.of(conv4(5, size=32)).layers
    assert layers == ["conv1", "conv2", "conv3", "conv4", "head"]


def test_frozen_parameters_are_not_laid_out():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    assert [e.name for e in Layout.of(model).entries] == ["1.weight", "1.bias"]


def test_a_model_with_nothing_to_adapt_is_refused():
    with pytest.raises(UsageError, match=r"model: none of conv1\.weight, .*, head\.bias is selected"):
        Layout.of(conv4(), adapted=lambda name: name.startswith("classifier"))
    with pytest.raises(UsageError, match="no parameter that requires a gradient, so nothing can adapt"):
        Layout.of(nn.ReLU())


def test_views_share_memory_with_the_point():
    layout = Layout.of(nn.Linear(2, 3))
    point = torch.zeros(4, len(layout))
    layout.views(point)["bias"].fill_(1.0)
    assert point.sum() == 12


@pytest.mark.parametrize("granularity", ["filter", "layer", "tensor-channel"])
def test_broadcasting_differentiates_as_indexing_does_to_any_order(granularity):
    broadcast = GroupBroadcast(Layout.of(conv4(5, size=16, width=4)), granularity)
    q = torch.randn(broadcast.groups, requires_grad=True)
    weights = torch.randn(len(broadcast.index))

    def twice(laid_out):
        (first,) = torch.autograd.grad((laid_out(q).pow(3) * weights).sum(), q, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), q)
        return torch.cat([first, second])

    assert torch.allclose(twice(broadcast), twice(lambda q: q[broadcast.index]))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen = nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
        self.frozen.requires_grad_(False)
        self.second = nn.Linear(2, 2, bias=False)
        self.second.weight = self.first.weight
        self.again = self.first
        self.missing = nn.Linear(2, 2, bias=False)
        self.register_buffer("count", torch.zeros(1))
        self.notes: list[str] = ["one"]

    def forward(self, x: Tensor) -> Tensor:
        return self.again(self.second(self.first(self.frozen(x)))) + self.count


def test_a_copy_has_the_values_and_shares_nothing_that_training_changes():
    model, x = Tied(), torch.randn(3, 2)
    before = model(x)
    other = clone_with_parameters(model, {"first.weight": 2 * model.first.weight})
    assert torch.allclose(other(x), 8 * before)  # three layers share the weight
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.buffers()):
            tensor.fill_(7.0)
    other.notes.append("two")
    other.register_forward_hook(lambda *_: torch.zeros(1))
    assert torch.equal(model(x), before)
    assert model.notes == ["one"]


def test_a_copy_keeps_tied_parameters_tied_and_frozen_ones_frozen():
    model = Tied()
    other = clone_with_parameters(model, {})
    assert other.first.weight is other.second.weight
    assert other.again is other.first
    assert [p.requires_grad for p in other.parameters()] == [p.requires_grad for p in model.parameters()]
    assert list(other.state_dict()) == list(model.state_dict())
    assert type(other) is Tied


class Referring(nn.Module):
    """Reaches its two layers by every route but attribute access."""

    def __init__(self, route: str) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 4), nn.Linear(4, 1)
        self.elsewhere = [nn.Linear(1, 1)]  # not a part of the network
        self.sizes: list[object] = [2, 4]
        self.sizes.append(self.sizes)
        self.layers: Any = {
            "list": lambda: [self.body, self.head],
            "tuples in a dictionary": lambda: {"layers": ((self.body,), (self.head,))}["layers"],
            "bound methods": lambda: [self.body.forward, self.apply_head],
            "partial functions": lambda: [partial(nn.Module.__call__, self.body), partial(self.apply_head)],
            "the network itself": lambda: Layers(self, [self]),
        }[route]()

    def apply_head(self, x: Tensor) -> Tensor:
        return self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layers, Layers):
            network, (same,) = self.layers
            return network.head(torch.relu(same.body(x)))
        body, head = (each[0] if isinstance(each, tuple) else each for each in self.layers)
        return head(torch.relu(body(x)))


class Layers(NamedTuple):
    network: Referring
    again: list[Referring]


@pytest.mark.parametrize(
    "route", ["list", "tuples in a dictionary", "bound methods", "partial functions", "the network itself"]
)
def test_a_copy_reaches_its_own_layers_by_any_route(route):
    model, x = Referring(route), torch.randn(3, 2)
    before = model(x)
    other = clone_with_parameters(model, {"head.weight": 2 * model.head.weight, "head.bias": torch.ones(1)})
    assert torch.allclose(other(x), 2 * (before - model.head.bias) + 1)
    assert torch.equal(model(x), before)
    assert other.elsewhere[0] is model.elsewhere[0]
