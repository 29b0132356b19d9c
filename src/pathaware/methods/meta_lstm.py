"""Meta-LSTM (Ravi and Larochelle, "Optimization as a model for few-shot learning", ICLR 2017, rJY0-Kcll).

    hⱼ, sⱼ = LSTM((x(gⱼ), x(Lⱼ)), hⱼ₋₁, sⱼ₋₁)                    gⱼ = ∇L(θⱼ), Lⱼ = L(θⱼ), both held constant
    fⱼ = σ(W_F · (hⱼ, θⱼ, fⱼ₋₁) + b_F)
    iⱼ = σ(W_I · (hⱼ, θⱼ, iⱼ₋₁) + b_I)
    θⱼ₊₁ = fⱼ ∘ θⱼ − iⱼ ∘ gⱼ
    x(v) = (log|v| / p, sign v) where |v| ≥ e⁻ᵖ, else (−1, eᵖ v); p = 10

The update of a parameter is that of an LSTM's cell state, and θ₀ is the cell state it learns to begin with.
One optimiser serves all D coordinates alike, each with memories of its own: h and s `[T, hidden, D]`, gates
(f, i) `[T, 2, D]`. A coordinate cannot tell which it is, only what it has seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.learner import Context
from pathaware.core.meta_gradient import first_order
from pathaware.core.parameters import Layout
from pathaware.core.rule import Memory, Rule
from pathaware.core.settings import at_least
from pathaware.methods.method import Method

P = 10.0
"""Of the preprocessing: what is smaller than e⁻ᵖ counts by its value, what is larger by its logarithm."""

SCATTER = 0.01
"""Weights begin this close to zero, as the authors' do: gradient descent is what it starts from."""


class MetaLSTM(Rule):
    """An LSTM that takes gradients and losses in and gives forget and input gates out.

    `keep` and `rate` are what the gates f and i begin with, 0 to 1: with f near 1 that is gradient descent.
    The authors' biases correspond to a `keep` of 0.982 to 0.998 and a `rate` of 0.007 to 0.018.
    """

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
                raise UsageError(f"{name}: {value} is not allowed; above 0 and below 1, as gates are")
        self.hidden = hidden
        self.cell = nn.Linear(4 + hidden, 4 * hidden)
        self.gates = nn.Linear(hidden, 2)
        self.of_point = nn.Parameter(torch.empty(2, 1))
        self.of_gates = nn.Parameter(torch.empty(2, 1))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -SCATTER, SCATTER)
        with torch.no_grad():
            self.gates.bias.copy_(torch.tensor([_logit(keep), _logit(rate)]))

    def begin(self, start: Tensor, context: Context) -> tuple[Tensor, Memory]:
        tasks, size = start.shape
        nothing = start.new_zeros(tasks, self.hidden, size)
        return start, (nothing, nothing, start.new_zeros(tasks, 2, size))

    def advance(
        self, j: int, points: Sequence[Tensor], gradient: Tensor, losses: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        hidden, state, gates = memory
        point, gradient = points[-1], gradient.detach()
        hidden, state = self._remember(preprocessed(gradient), preprocessed(losses.detach()), hidden, state)
        raw = _linear(self.gates.weight, hidden, self.gates.bias[:, None])
        gates = torch.sigmoid(raw + point[:, None] * self.of_point + gates * self.of_gates)
        forget, take = gates.unbind(1)
        return forget * point - take * gradient, (hidden, state, gates)

    def _remember(
        self, gradients: Tensor, losses: Tensor, hidden: Tensor, state: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The first LSTM. A task's loss is the same for all its coordinates, so it acts as a bias."""
        of_loss, of_rest = self.cell.weight.tensor_split([2], dim=1)
        bias = nn.functional.linear(losses, of_loss, self.cell.bias)
        raw = _linear(of_rest, torch.cat([gradients, hidden], dim=1), bias[..., None])
        raw_gates, candidate = raw.split([3 * self.hidden, self.hidden], dim=1)
        take, forget, show = raw_gates.sigmoid().chunk(3, dim=1)
        state = forget * state + take * candidate.tanh()
        return show * state.tanh(), state


def _linear(weight: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """`weight [out, in]` applied to `values [T, in, D]`: coordinates lie side by side, which CPUs like."""
    return torch.baddbmm(bias, weight.expand(len(values), -1, -1), values)


def preprocessed(values: Tensor) -> Tensor:
    """Size and sign of numbers `[T, …]` of any magnitude, as two of about one: `[T, 2, …]`."""
    size = values.abs().clamp(min=math.exp(-P)).log() / P
    sign = (values * math.exp(P)).clamp(-1, 1)
    return torch.stack([size, sign], 1)


def _logit(gate: float) -> float:
    return math.log(gate / (1 - gate))


METHOD = Method(
    "meta-lstm",
    "learns an optimiser whose cell state is the network",
    "Ravi and Larochelle, ICLR 2017, OpenReview rJY0-Kcll",
    2017,
    MetaLSTM,
    meta_gradient=first_order,
    order="first",
)
