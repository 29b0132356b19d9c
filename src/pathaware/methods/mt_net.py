"""MT-net (Lee and Choi, ICML 2018, arXiv:1801.05558).

    y = T (W x + b)                            every layer; T square, initialised to I, does not adapt
    mᵢ ~ Bernoulli(σ(ζᵢ))                      for every task and every output unit or filter i of a layer
    Wⱼ₊₁ = Wⱼ − α M ∘ ∇L(Wⱼ)                   row i of W, and bᵢ, adapt where mᵢ = 1; M `[T, D]`

T is the metric in which W descends: the product T W moves along T Tᵀ times its own gradient. The mask is the
subspace. T and ζ are learned through every inner gradient. A mask is drawn once per path. It is binary in the
forward pass; ζ is learned through its relaxation, σ((ζ + logistic noise) / τ), as in the authors' program.
Gains and shifts of norm layers do not adapt and are meta-learned, as theirs.

Departures from the authors' program:

- Where no gradient is needed, the mask is its expectation σ(ζ), so that predictions are deterministic; theirs
  is drawn there, too. It is the mean of the steps of training and, unlike a threshold, does not jump where ζ
  is undecided, as all are initially.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.learner import Context
from pathaware.core.parameters import Layout
from pathaware.core.rule import Memory, Rule
from pathaware.methods.method import Method
from pathaware.models.surgery import LAYERS, identity_after, insert, inserted

PREFIX = "t"


def transformed(model: nn.Module) -> nn.Module:
    """Insert a layer `t1`, `t2`, … after every convolution and linear layer."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LAYERS)}
    for name in layers:
        if "." in name or not name:
            raise UsageError(f"model: {name or 'it'} must be a layer of an nn.Sequential for mt-net")
    return insert(model, PREFIX, {name: identity_after(layer) for name, layer in layers.items()})


class MTNet(Rule):
    """Gradient descent of the rows that a learned mask selects.

    - `probability`: the initial probability that a row adapts; `temperature`: τ of the relaxation.
    - ζ is `logits [units]`, the units of all adapted layers in order.
    """

    def __init__(
        self,
        network: nn.Module,
        steps: int = 5,
        *,
        rate: float = 0.01,
        probability: float = 0.5,
        temperature: float = 1.0,
    ) -> None:
        if not 0 < probability < 1:
            raise UsageError(f"probability: {probability} is not allowed; above 0 and below 1")
        if temperature <= 0:
            raise UsageError(f"temperature: {temperature} is not allowed; above 0")
        adapted = {
            f"{name}."
            for name, module in network.named_modules()
            if isinstance(module, LAYERS) and not inserted(PREFIX, name)
        }
        super().__init__(Layout.of(network, lambda name: name.startswith(tuple(adapted))), steps)
        self.rate, self.temperature = rate, temperature
        self.rows = _rows(self.layout)
        units = max(stop for _, stop, _ in self.rows)
        self.logits = nn.Parameter(torch.full((units,), math.log(probability / (1 - probability))))

    def begin(self, start: Tensor, context: Context) -> tuple[Tensor, Memory]:
        logits = self.logits.expand(len(start), -1)
        return start, self.broadcast(
            torch.sigmoid(logits) if context.order == "none" else self.sample(logits)
        )

    def sample(self, logits: Tensor) -> Tensor:
        """Binary masks `[T, units]` with the derivative of their relaxation."""
        uniform = torch.rand(logits.shape, dtype=logits.dtype, device=logits.device)
        relaxed = torch.sigmoid((logits + torch.logit(uniform)) / self.temperature)
        return (relaxed > 0.5).to(relaxed.dtype) + (relaxed - relaxed.detach())

    def broadcast(self, units: Tensor) -> Tensor:
        """Repeat one number per unit, `[T, units]`, for its weights and its bias: `[T, D]`."""
        parts = [units[:, start:stop].unsqueeze(2).expand(-1, -1, width) for start, stop, width in self.rows]
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    def advance(
        self, j: int, points: Sequence[Tensor], gradient: Tensor, losses: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return torch.addcmul(points[-1], memory, gradient, value=-self.rate), memory


def _rows(layout: Layout) -> list[tuple[int, int, int]]:
    """First unit, last unit + 1 and entries per unit for every tensor of the layout."""
    first: dict[str, int] = {}
    rows, count = [], 0
    for entry in layout.entries:
        units = entry.shape[0]
        if entry.layer not in first:
            first[entry.layer], count = count, count + units
        start = first[entry.layer]
        rows.append((start, start + units, entry.numel // units))
    return rows


METHOD = Method(
    "mt-net",
    "learns the metric and the subspace of gradient descent",
    "Lee and Choi, ICML 2018, arXiv:1801.05558",
    2018,
    MTNet,
    network=transformed,
)
