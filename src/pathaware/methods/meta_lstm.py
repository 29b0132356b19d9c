"""Meta-LSTM (Ravi and Larochelle, ICLR 2017, "Optimization as a model for few-shot learning", rJY0-Kcll).

    hⱼ, sⱼ = LSTM((x(gⱼ), x(Lⱼ)), hⱼ₋₁, sⱼ₋₁)                    gⱼ = ∇L(θⱼ), Lⱼ = L(θⱼ), both held constant
    fⱼ = σ(W_F · (hⱼ, θⱼ, fⱼ₋₁) + b_F)
    iⱼ = σ(W_I · (hⱼ, θⱼ, iⱼ₋₁) + b_I)
    θⱼ₊₁ = fⱼ ∘ θⱼ − iⱼ ∘ gⱼ
    x(v) = (log|v| / p, sign v) where |v| ≥ e⁻ᵖ, else (−1, eᵖ v); p = 10

A learned optimiser: parameters are updated like the cell state of an LSTM, and θ₀ is the learned initial cell
state. One optimiser is shared by all D coordinates, each with its own h, s and gates (f, i). The coordinates
of a task that have had no gradient yet share h and s, which are computed once (`Columns`).

Departures from the authors' code:

- There are five steps, each on the whole support set. On miniImageNet theirs has five for one shot and eight
  for five shots, in minibatches of 5 and 25 examples, which is the whole support set of five classes.
- The gates fⱼ₋₁ and iⱼ₋₁ are fed back after the sigmoid, as the equations say; theirs before it.
- They clip the meta-gradient's norm at 0.25. Here it is clipped as for all other methods.
- Batch norm has no running statistics. Theirs uses them in evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.meta_gradient import MetaGradient, first_order
from pathaware.core.parameters import Layout
from pathaware.core.rule import Allowed, Memory, Rule
from pathaware.core.settings import at_least
from pathaware.methods.lstm_cell import Columns, coordinatewise, lstm_cell, lstm_step
from pathaware.methods.method import Method

P = 10.0
"""p of the preprocessing: values below e⁻ᵖ enter linearly, larger ones by their logarithm."""

SCATTER = 0.01
"""Weights are initialised this close to zero, as the authors do: at first it is gradient descent."""


class MetaLSTM(Rule):
    """An LSTM that maps gradients and losses to forget and input gates.

    `keep` and `rate` are the initial values of the gates f and i, 0 to 1; with f near 1 that is gradient
    descent. The authors' biases correspond to a `keep` of 0.982 to 0.993 and a `rate` of 0.007 to 0.018.
    `hidden` is the number of units of the LSTM.
    """

    allows: frozenset[Allowed] = frozenset({"more classes", "values"})

    def __init__(
        self,
        network: nn.Module | Layout,
        steps: int = 5,
        *,
        rate: float = 0.01,
        keep: float = 0.995,
        hidden: int = 20,
    ) -> None:
        super().__init__(network, steps)
        at_least(1, hidden=hidden)
        for name, value in {"rate": rate, "keep": keep}.items():
            if not 0 < value < 1:
                raise UsageError(f"{name}: {value} is not allowed; must be above 0 and below 1")
        self.cell = nn.Linear(4 + hidden, 4 * hidden)
        self.gates = nn.Linear(hidden, 2)
        self.of_point = nn.Parameter(torch.empty(2, 1))
        self.of_gates = nn.Parameter(torch.empty(2, 1))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -SCATTER, SCATTER)
        with torch.no_grad():
            self.gates.bias.copy_(torch.tensor([_logit(keep), _logit(rate)]))

    def default_meta_gradient(self) -> MetaGradient:
        return first_order()

    def advance(
        self, j: int, points: Sequence[Tensor], gradient: Tensor, losses: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        point, gradient = points[-1], gradient.detach()
        of_loss, of_rest = self.cell.weight.tensor_split([2], dim=1)
        # a task's loss is the same for all its coordinates, so it acts as a bias
        bias = nn.functional.linear(preprocessed(losses.detach()), of_loss, self.cell.bias)
        weights = self.gates.weight, self.gates.bias[:, None], self.of_point, self.of_gates
        fused = lstm_step(point, gradient, memory, (of_rest, bias), weights, P)
        if fused is not None:
            return fused
        columns, state, gates = memory or (Columns(), None, torch.zeros_like(self.of_gates))
        columns = columns.after(gradient)
        state = lstm_cell(preprocessed(columns.gather(gradient)), state, of_rest, bias)
        raw = columns.spread(coordinatewise(self.gates, state[0]))
        gates = torch.sigmoid(raw + point[:, None] * self.of_point + gates * self.of_gates)
        forget, update = gates.unbind(1)
        return forget * point - update * gradient, (columns, state, gates)


def preprocessed(values: Tensor, p: float = P) -> Tensor:
    """x(v): size and sign of values `[T, …]` of any magnitude, scaled to about one: `[T, 2, …]`."""
    size = values.abs().clamp(min=math.exp(-p)).log() / p
    sign = (values * math.exp(p)).clamp(-1, 1)
    return torch.stack([size, sign], 1)


def _logit(gate: float) -> float:
    return math.log(gate / (1 - gate))


METHOD = Method(
    "meta-lstm",
    "learns an optimiser, an LSTM whose cell state is the parameters",
    "Ravi and Larochelle, ICLR 2017, OpenReview rJY0-Kcll",
    2017,
    MetaLSTM,
    meta_gradient=first_order,
    order="first",
)
