"""MANN (Santoro, Bartunov, Botvinick, Wierstra and Lillicrap, ICML 2016, arXiv:1605.06065).

    hₜ, cₜ = LSTM([xₜ, yₜ, rₜ₋₁]; hₜ₋₁, cₜ₋₁)       controller: features, label, and the previous read
    kₜ = tanh(W_k hₜ),  gₜ = σ(W_g hₜ)              key `[T, size]` and gate `[T, 1]`
    w^w = g w^r + (1 − g) w^lu                      write weights `[T, slots]`, from w^r and w^u at t − 1
    M(i) ← (1 − w^lu(i)) M(i) + w^w(i) k            memory `[T, slots, size]`, least used slot erased first
    w^r = softmax(β cos(k, M)),  r = Σᵢ w^r(i) M(i)
    w^u ← γ w^u + w^r + w^w,  w^lu = 1 at the least entry of w^u, 0 elsewhere
    ŷ = W_o [h, r]                                  prediction for a query

A memory-augmented network writes support examples to an external memory, one after another, and reads the
memory to predict a query.

Departures from the authors' code:

- We found no code by the authors; the paper is followed.
- The paper shows xₜ with yₜ₋₁ in one long sequence. Here a label comes with its example, and each query is
  one more step with a zero label that reads the memory as the support set left it. So predictions do not
  depend on the other queries. They do depend on the order of the support set.
- There is one read per step; the paper has four, which write to four slots.
- β is learned, as in neural Turing machines. The paper has β = 1, with which all 128 slots are read about
  equally at first and learning starts slowly: it trains for 10⁵ episodes.
- A constant is added to the denominator of cosines, see `FAINT`.
- x are features of the network, which is trained with the memory; in the paper they are the images' pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from pathaware.core.head import Fitted, Head, one_hot
from pathaware.core.rule import Allowed
from pathaware.core.settings import at_least, fractions
from pathaware.methods.method import Method

FAINT = 0.01
"""Added to the denominator ‖k‖ ‖M(i)‖ of cosines. A cosine ignores lengths, so without it the small values
that a gate lets through to unused slots would be read like full entries."""


class Mann(Head):
    """Stores the support set in a memory; learns what to write and how to read.

    `slots` of `size` numbers each; `hidden` units of the controller; `decay` is γ, `gain` is the initial β.
    """

    allows: frozenset[Allowed] = frozenset({"values"})

    def __init__(
        self,
        network: nn.Module,
        *,
        slots: int = 128,
        size: int = 40,
        hidden: int = 200,
        decay: float = 0.99,
        gain: float = 10.0,
    ) -> None:
        super().__init__(network)
        at_least(1, slots=slots, size=size, hidden=hidden)
        at_least(0, gain=gain)
        fractions(decay=decay)
        self.slots, self.size, self.decay = slots, size, decay
        self.controller = nn.LSTMCell(self.features + self.outputs + size, hidden)
        self.key = nn.Linear(hidden, size)
        self.gate = nn.Linear(hidden, 1)
        self.decode = nn.Linear(hidden + size, self.outputs)
        self.gain = nn.Parameter(torch.tensor(gain))

    def class_blocks(self) -> Mapping[str, tuple[int, Sequence[int]]]:
        return {"controller.weight_ih": (1, (self.features, self.outputs, self.size))}

    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        tasks, labels = len(features), one_hot(targets, self.outputs, features)
        memory = features.new_zeros(tasks, self.slots, self.size)
        looked_up = usage = features.new_zeros(tasks, self.slots)
        hidden = cell = features.new_zeros(tasks, self.controller.hidden_size)
        read = features.new_zeros(tasks, self.size)
        for x, y in zip(features.unbind(1), labels.unbind(1), strict=True):
            hidden, cell = self.controller(torch.cat([x, y, read], 1), (hidden, cell))
            key, gate = self.key(hidden).tanh(), self.gate(hidden).sigmoid()
            memory, written = write(memory, key, gate, looked_up, usage)
            looked_up = look_up(memory, key.unsqueeze(1), self.gain).squeeze(1)
            read = (looked_up.unsqueeze(1) @ memory).squeeze(1)
            usage = self.decay * usage + looked_up + written
        return memory, hidden, cell, read

    def predict(self, fitted: Fitted, features: Tensor) -> Tensor:
        memory, *state = fitted
        tasks, queries, _ = features.shape
        # every query starts from the controller's state after the support set
        hidden, cell, read = (part.repeat_interleave(queries, dim=0) for part in state)
        no_label = features.new_zeros(tasks * queries, self.outputs)
        hidden, _ = self.controller(torch.cat([features.flatten(0, 1), no_label, read], 1), (hidden, cell))
        hidden = hidden.view(tasks, queries, -1)
        retrieved = look_up(memory, self.key(hidden).tanh(), self.gain) @ memory
        predictions: Tensor = self.decode(torch.cat([hidden, retrieved], 2))
        return predictions


def write(
    memory: Tensor, key: Tensor, gate: Tensor, looked_up: Tensor, usage: Tensor
) -> tuple[Tensor, Tensor]:
    """The memory after writing `key [T, size]`, and the write weights `[T, slots]`."""
    least = one_hot(usage.argmin(1), usage.shape[1], usage)
    weights = gate * looked_up + (1 - gate) * least
    kept = memory * (1 - least).unsqueeze(2)
    return kept + weights.unsqueeze(2) * key.unsqueeze(1), weights


def look_up(memory: Tensor, keys: Tensor, gain: Tensor) -> Tensor:
    """Read weights `[T, N, slots]` for `keys [T, N, size]`; they sum to one over the slots."""
    lengths = keys.norm(dim=2, keepdim=True) * memory.norm(dim=2).unsqueeze(1)
    cosines: Tensor = keys @ memory.transpose(1, 2) / (lengths + FAINT)
    return (gain * cosines).softmax(2)


METHOD = Method(
    "mann",
    "writes examples to an external memory and reads it for queries",
    "Santoro, Bartunov, Botvinick, Wierstra and Lillicrap, ICML 2016, arXiv:1605.06065",
    2016,
    Mann,
    order="none",
    version=2,
)
