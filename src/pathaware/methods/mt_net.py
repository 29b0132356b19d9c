"""MT-Net (Lee and Choi, ICML 2018, arXiv:1801.05558).

    y = T (W x + b)                            every layer; T square, initialised to I, does not adapt
    mᵢ ~ Bernoulli(σ(ζᵢ))                      for every task and every output unit or filter i of a layer
    Wⱼ₊₁ = Wⱼ − α M ∘ ∇L(Wⱼ)                   row i of W, and bᵢ, adapt where mᵢ = 1; M `[T, D]`

T is the metric in which W descends: the product V = T W moves along T M Tᵀ times its own gradient,

    Vⱼ₊₁ = Vⱼ − α T M Tᵀ ∇L(Vⱼ)                the same with T b                    V₀ = T W₀

and this is what the code computes: the network keeps its layers, points of a path hold T W and T b, and the
engine runs them like those of MAML. The mask is the subspace. T and ζ are learned through every inner
gradient. A mask is drawn once per path. It is binary in the forward pass; ζ is learned through its
relaxation, σ((ζ + logistic noise) / τ), as in the authors' code. Gains and shifts of norm layers do not
adapt and are meta-learned, as in theirs.

Departures from the authors' code:

- Where no gradient is needed, the mask is its expectation σ(ζ), so that predictions are deterministic; theirs
  is drawn there, too. The expectation gives the mean of the steps of training and, unlike a threshold, does
  not jump where ζ is undecided, as every ζ is initially.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.parameters import Layout
from pathaware.core.rule import Context, Memory, Rule
from pathaware.core.settings import at_least, positive
from pathaware.methods.method import Method
from pathaware.models.surgery import LAYERS


@dataclass(frozen=True)
class LayerPart:
    """A layer in the flat vector: its output units, and where its weight and, if it has one, bias end."""

    units: int
    sizes: list[int]


class MTNet(Rule):
    """Gradient descent, in a learned metric, of the rows that a learned mask selects.

    - `probability`: the initial probability that a row adapts; `temperature`: τ of the relaxation.
    - T is `metrics`, one matrix `[units, units]` per layer; ζ is `logits [units]`, all layers in order.
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
        at_least(0, rate=rate)
        if not 0 < probability < 1:
            raise UsageError(f"probability: {probability} is not allowed; must be above 0 and below 1")
        positive(temperature=temperature)
        adapted = {name for name, module in network.named_modules() if isinstance(module, LAYERS)}
        super().__init__(Layout.of(network, lambda name: name.rpartition(".")[0] in adapted), steps)
        self.rate, self.temperature = rate, temperature
        self.layers = _layers(self.layout)
        units = [layer.units for layer in self.layers]
        self.metrics = nn.ParameterList(torch.eye(count) for count in units)
        self.logits = nn.Parameter(torch.full((sum(units),), math.log(probability / (1 - probability))))

    def class_blocks(self) -> Mapping[str, tuple[int, Sequence[int]]]:
        return {"logits": (0, [layer.units for layer in self.layers])}

    def begin(self, start: Tensor, context: Context) -> tuple[Tensor, Memory]:
        logits = self.logits.expand(len(start), -1)
        # Weights are those of influence, which differentiates predictions.
        predicts = context.order == "none" or context.weights is not None
        mask = torch.sigmoid(logits) if predicts else self.sample(logits)
        masks = mask.split([layer.units for layer in self.layers], dim=1)
        # Tᵀ is part of the gradient, which is constant to first order.
        constant = context.order == "first"
        products = tuple(
            t * m.unsqueeze(1) @ (t.detach() if constant else t).T
            for t, m in zip(self.metrics, masks, strict=True)
        )
        return self.multiply(tuple(self.metrics), start), products

    def sample(self, logits: Tensor) -> Tensor:
        """Binary masks `[T, units]` with the derivative of their relaxation."""
        uniform = torch.rand(logits.shape, dtype=logits.dtype, device=logits.device)
        relaxed = torch.sigmoid((logits + torch.logit(uniform)) / self.temperature)
        return (relaxed > 0.5).to(relaxed.dtype) + (relaxed - relaxed.detach())

    def multiply(self, matrices: Sequence[Tensor], values: Tensor) -> Tensor:
        """Multiply every layer's rows in `values [T, D]`, biases included, by its matrix `[units, units]` or
        by one matrix per task, `[T, units, units]`."""
        products = []
        of_layers = values.split([sum(layer.sizes) for layer in self.layers], dim=1)
        for matrix, layer, part in zip(matrices, self.layers, of_layers, strict=True):
            tensors = [each.unflatten(1, (layer.units, -1)) for each in part.split(layer.sizes, dim=1)]
            product = matrix @ (tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=2))
            widths = [each.shape[2] for each in tensors]
            products += [each.flatten(1) for each in product.split(widths, dim=2)]
        return torch.cat(products, dim=1)

    def advance(
        self, j: int, points: Sequence[Tensor], gradient: Tensor, losses: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return torch.add(points[-1], self.multiply(memory, gradient), alpha=-self.rate), memory


def _layers(layout: Layout) -> list[LayerPart]:
    """The layers in the order of the flat vector: a bias directly follows its weight."""
    layers: dict[str, LayerPart] = {}
    for entry in layout.entries:
        name = entry.name.rpartition(".")[0]
        layers.setdefault(name, LayerPart(entry.shape[0], [])).sizes.append(entry.numel)
    return list(layers.values())


METHOD = Method(
    "mt-net",
    "learns the metric and the subspace of gradient descent",
    "Lee and Choi, ICML 2018, arXiv:1801.05558",
    2018,
    MTNet,
)
