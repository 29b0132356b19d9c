"""MT-net (Lee and Choi, ICML 2018, arXiv:1801.05558).

    y = T (W x + b)                            every layer; T square, starts as the identity, does not adapt
    mᵢ ~ Bernoulli(σ(ζᵢ))                      for every task and every output unit or filter i of a layer
    Wⱼ₊₁ = Wⱼ − α M ∘ ∇L(Wⱼ)                   row i of W, and bᵢ, adapt where mᵢ = 1; M `[T, D]`

T is the metric in which W descends: the product T W moves along T Tᵀ times its own gradient. The mask is the
subspace. Both are learned, T and ζ through every inner gradient.

A mask is drawn once for a path. It is binary in the forward pass; ζ learns through its relaxation,
σ((ζ + logistic noise) / τ), as the authors let it. Where no gradient is wanted the mask is its expectation
σ(ζ), so that answers are the same each time (the authors draw there too): it is the mean of the steps that
training took, and unlike a threshold it does not jump where ζ is undecided, as all are at the start.

Gains and shifts of norm layers do not adapt and are meta-learned, as the authors have it.
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
    """The network with a layer `t1`, `t2`, … right behind every convolution and linear layer."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LAYERS)}
    for name in layers:
        if "." in name or not name:
            raise UsageError(f"model: {name or 'it'} must be a layer of an nn.Sequential for mt-net")
    return insert(model, PREFIX, {name: identity_after(layer) for name, layer in layers.items()})


class MTNet(Rule):
    """Gradient descent of the rows that a learned mask lets move.

    - `probability` that a row adapts, at the start of training; `temperature` τ of the relaxation.
    - ζ is `logits [units]`, the units of all adapted layers one after another.
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
            raise UsageError(f"probability: {probability} is not allowed; between 0 and 1")
        if temperature <= 0:
            raise UsageError(f"temperature: {temperature} is not allowed; a positive number")
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
        return start, self.spread(torch.sigmoid(logits) if context.order == "none" else self.sample(logits))

    def sample(self, logits: Tensor) -> Tensor:
        """Masks of zeros and ones `[T, units]`, with the derivative of their relaxation."""
        uniform = torch.rand(logits.shape, dtype=logits.dtype, device=logits.device)
        relaxed = torch.sigmoid((logits + torch.logit(uniform)) / self.temperature)
        return (relaxed > 0.5).to(relaxed.dtype) + (relaxed - relaxed.detach())

    def spread(self, units: Tensor) -> Tensor:
        """One number a unit, `[T, units]`, laid out over its weights and its bias: `[T, D]`."""
        parts = [units[:, start:stop].unsqueeze(2).expand(-1, -1, width) for start, stop, width in self.rows]
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    def advance(
        self, j: int, points: Sequence[Tensor], gradient: Tensor, losses: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return torch.addcmul(points[-1], memory, gradient, value=-self.rate), memory


def _rows(layout: Layout) -> list[tuple[int, int, int]]:
    """For every tensor of the layout, which units it belongs to, from and to, and its entries for each."""
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
    "learns in which metric and which subspace to descend",
    "Lee and Choi, ICML 2018, arXiv:1801.05558",
    2018,
    MTNet,
    network=transformed,
)
