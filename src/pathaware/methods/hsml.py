"""HSML, hierarchically structured meta-learning (Yao, Wei, Huang and Li, ICML 2019, arXiv:1905.05301).

    gᵢ = ReLU(FC(mean over the support set of Enc(x ⊕ y)))                            task, `[T, d]`
    p[k → k'] = softmax over k' of −‖h[k] − c[k']‖² / 2σ²                             assignment, `[T, K, K']`
    h'[k'] = Σ_k p[k → k'] tanh(W[k'] h[k] + b[k'])                                   clusters, `[T, K', d]`
    θ₀ᵢ = θ₀ ∘ sigmoid(W_g (gᵢ ⊕ hᴸ) + b_g)                                           initialisation, `[T, D]`
    minimise L_query(θₙ) + ξ ½ mean of (x ⊕ y − Dec(Enc(x ⊕ y)))²

A task's representation gᵢ, the only node of level 0, is assigned softly to two levels of clusters and one
root hᴸ. Representation and root gate every parameter of the initialisation of MAML's inner loop.

Departures from the authors' code:

- Examples are aggregated by their mean, one of the paper's two aggregators. The other one is recurrent and
  depends on the order of examples.
- Images are embedded by two strided convolutions and a mean over space. The paper's fully-connected layers
  would fix the size of images.
- Tasks are assigned to clusters by distances on every level, as the paper has it; on the second level their
  code has linear gates by default. Its 2σ² is 4 on curves and 20 on images, ours 4.5 (`sigma` = 1.5), and its
  representations have 128 entries on images, ours 40 (`size`).
- Gates are initialised near `gate` = 0.9, close to MAML. Theirs are initialised near one half.
- The default is MAML's five steps; their code's default is one, and its scripts choose the number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.head import one_hot
from pathaware.core.last_layer import last_linear
from pathaware.core.learner import require_path
from pathaware.core.meta_gradient import MetaGradient
from pathaware.core.rule import Context, Memory
from pathaware.core.settings import at_least
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method

FILTERS = 32
"""Filters of the convolutions that embed images."""


class Level(nn.Module):
    """Soft clustering of nodes `[T, K, d]` into `clusters` nodes `[T, K', d]` of the next level."""

    def __init__(self, clusters: int, size: int, sigma: float) -> None:
        super().__init__()
        self.scale = 0.5 / sigma**2
        self.centres = nn.Parameter(torch.empty(clusters, size))
        self.weight = nn.Parameter(torch.empty(clusters, size, size))
        self.bias = nn.Parameter(torch.zeros(clusters, size))
        bound = 1 / math.sqrt(size)
        nn.init.uniform_(self.centres, -bound, bound)
        nn.init.uniform_(self.weight, -bound, bound)

    def assignments(self, nodes: Tensor) -> Tensor:
        """Assignment probabilities `[T, K, K']`; they sum to one over K'."""
        distances = (nodes.unsqueeze(2) - self.centres).square().sum(3)
        return torch.softmax(-self.scale * distances, 2)

    def forward(self, nodes: Tensor) -> Tensor:
        messages = torch.einsum("tki,coi->tkco", nodes, self.weight) + self.bias
        return (self.assignments(nodes).unsqueeze(3) * messages.tanh()).sum(1)


class HSML(GradientDescent):
    """Gradient descent from an initialisation that is gated per task.

    - `size`: d, the size of task representations; `clusters`, `groups`: the numbers of nodes of two levels.
    - `sigma`: the width σ of the assignment; `gate`: the approximate initial value of all gates, 0 to 1.
    """

    def __init__(
        self,
        network: nn.Module,
        steps: int = 5,
        *,
        rate: float = 0.01,
        size: int = 40,
        clusters: int = 4,
        groups: int = 2,
        sigma: float = 1.5,
        gate: float = 0.9,
    ) -> None:
        super().__init__(network, steps, rate=rate)
        at_least(1, size=size, clusters=clusters, groups=groups)
        at_least(1e-3, sigma=sigma)
        if not 0 < gate < 1:
            raise UsageError(f"gate: {gate} is not allowed; must be above 0 and below 1")
        self.outputs = last_linear(network)[1].out_features
        self.embedding, self.features = _embedding(network)
        pairs = self.features + self.outputs
        self.encoder = nn.Sequential(
            nn.Linear(pairs, 2 * size), nn.ReLU(), nn.Linear(2 * size, size), nn.ReLU()
        )
        self.decoder = nn.Sequential(nn.Linear(size, 2 * size), nn.ReLU(), nn.Linear(2 * size, pairs))
        self.aggregate = nn.Linear(size, size)
        self.levels = nn.Sequential(*(Level(count, size, sigma) for count in (clusters, groups, 1)))
        self.gates = nn.Linear(2 * size, len(self.layout))
        nn.init.constant_(self.gates.bias, math.log(gate / (1 - gate)))

    def default_meta_gradient(self) -> MetaGradient:
        return Reconstructing()

    def class_blocks(self) -> Mapping[str, tuple[int, Sequence[int]]]:
        pairs = self.features, self.outputs
        rows = {"decoder.2.weight": (0, pairs), "decoder.2.bias": (0, pairs)}
        return {"encoder.0.weight": (1, pairs), **rows, "gates.weight": (0, self.layout.sizes)}

    def begin(self, start: Tensor, context: Context) -> tuple[Tensor, Memory]:
        task = self.represent(context.support_x, context.support_y)
        root = self.levels(task.unsqueeze(1)).squeeze(1)
        return start * torch.sigmoid(self.gates(torch.cat([task, root], 1))), None

    def represent(self, x: Tensor, y: Tensor) -> Tensor:
        """Task representations `[T, d]`, independent of the order of examples."""
        pooled: Tensor = self.encoder(self.pairs(x, y)).mean(1)
        return torch.relu(self.aggregate(pooled))

    def pairs(self, x: Tensor, y: Tensor) -> Tensor:
        """Embedded inputs with their targets, x ⊕ y: `[T, S, features + outputs]`."""
        embedded = self.embedding(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return torch.cat([embedded, one_hot(y, self.outputs, embedded)], 2)

    def reconstruction_losses(self, x: Tensor, y: Tensor) -> Tensor:
        """The autoencoder's mean squared error, halved, on the examples of each task: `[T]`."""
        pairs = self.pairs(x, y)
        decoded: Tensor = self.decoder(self.encoder(pairs))
        return 0.5 * (pairs - decoded).square().mean((1, 2))


def _embedding(network: nn.Module) -> tuple[nn.Module, int]:
    """A module that embeds single inputs, and the number of its features."""
    first = next((m for m in network.modules() if isinstance(m, (nn.Conv2d, nn.Linear))), None)
    if isinstance(first, nn.Linear):
        return nn.Flatten(), first.in_features
    if first is None:
        raise UsageError(
            "model: it must have a convolution or a linear layer, which tells the shape of its inputs"
        )
    layers = [
        nn.Conv2d(first.in_channels, FILTERS, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(FILTERS, FILTERS, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ]
    return nn.Sequential(*layers), FILTERS


class Reconstructing(MetaGradient):
    """The exact meta-gradient of the query loss plus `reconstruction` (ξ) times the autoencoder's loss."""

    def __init__(self, *, reconstruction: float = 0.01) -> None:
        at_least(0, reconstruction=reconstruction)
        self.reconstruction = reconstruction

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        rule = require_path(learner).rule
        if not isinstance(rule, HSML):
            raise UsageError(f"method: {type(rule).__name__} has no autoencoder")
        losses = learner.adapted_losses(episodes)
        reconstruction = rule.reconstruction_losses(episodes.support_x, episodes.support_y)
        ((losses + self.reconstruction * reconstruction).sum() * weight).backward()
        return losses.detach()


METHOD = Method(
    "hsml",
    "gates the initialisation by a hierarchical clustering of tasks",
    "Yao, Wei, Huang and Li, ICML 2019, arXiv:1905.05301",
    2019,
    HSML,
    meta_gradient=Reconstructing,
)
