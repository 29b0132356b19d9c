"""The copy of a network that an adaptation returns."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pathaware.core.parameters import clone_with_parameters


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


def test_a_twin_holds_the_values_and_shares_nothing_that_training_changes():
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


def test_a_twin_keeps_what_was_tied_tied_and_what_was_frozen_frozen():
    model = Tied()
    other = clone_with_parameters(model, {})
    assert other.first.weight is other.second.weight
    assert other.again is other.first
    assert [p.requires_grad for p in other.parameters()] == [p.requires_grad for p in model.parameters()]
    assert list(other.state_dict()) == list(model.state_dict())
    assert type(other) is Tied
