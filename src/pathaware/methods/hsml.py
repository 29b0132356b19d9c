"""HSML, hierarchically structured meta-learning (Yao, Wei, Huang and Li, ICML 2019, arXiv:1905.05301).

    gᵢ = FC(mean over the support set of Enc(x ⊕ y))                                  task, `[T, d]`
    p[k → k'] = softmax over k' of −‖h[k] − c[k']‖² / 2σ²                             assignment, `[T, K, K']`
    h'[k'] = Σ_k p[k → k'] tanh(W[k'] h[k] + b[k'])                                   clusters, `[T, K', d]`
    θ₀ᵢ = θ₀ ∘ sigmoid(W_g (gᵢ ⊕ hᴸ) + b_g)                                           start, `[T, D]`
    min L_query(θₙ) + ξ ½‖x ⊕ y − Dec(Enc(x ⊕ y))‖²

Tasks climb from gᵢ, the only node of level 0, over two levels of clusters to one root hᴸ; what they gather on
the way gates every parameter of the start, and from there MAML goes on. Of the paper's two aggregators this
is the one that pools; the recurrent one would depend on the order of examples. Images enter by two strided
convolutions and their means over space in place of the paper's fully-connected layers, which would need to
know how large images are.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.head import last_linear, one_hot
from pathaware.core.learner import Context, FewShotLearner, require_path
from pathaware.core.meta_gradient import MetaGradient
from pathaware.core.rule import Memory
from pathaware.core.settings import at_least
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method

FILTERS = 32
"""Of the convolutions that see images."""


class Level(nn.Module):
    """One step up: nodes `[T, K, d]` are shared out among `clusters` nodes `[T, K', d]` above them."""

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
        """`[T, K, K']`; what a node gives to those above it adds up to one."""
        apart = (nodes.unsqueeze(2) - self.centres).square().sum(3)
        return torch.softmax(-self.scale * apart, 2)

    def forward(self, nodes: Tensor) -> Tensor:
        views = torch.einsum("tki,coi->tkco", nodes, self.weight) + self.bias
        return (self.assignments(nodes).unsqueeze(3) * views.tanh()).sum(1)


class HSML(GradientDescent):
    """Gradient descent from a start that is gated for the task.

    - `size`: d, of task representations; `clusters`, `groups`: how many nodes the two levels have.
    - `sigma`: how far a centre reaches; `gate`: what all gates begin near, 0 to 1. The authors' begin near a
      half; near one it begins as MAML.
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
            raise UsageError(f"gate: {gate} is not allowed; above 0 and below 1")
        self.outputs = last_linear(network)[1].out_features
        self.embedding, features = _embedding(network)
        pairs = features + self.outputs
        self.encoder = nn.Sequential(
            nn.Linear(pairs, 2 * size), nn.ReLU(), nn.Linear(2 * size, size), nn.ReLU()
        )
        self.decoder = nn.Sequential(nn.Linear(size, 2 * size), nn.ReLU(), nn.Linear(2 * size, pairs))
        self.aggregate = nn.Linear(size, size)
        self.levels = nn.Sequential(*(Level(count, size, sigma) for count in (clusters, groups, 1)))
        self.gates = nn.Linear(2 * size, len(self.layout))
        nn.init.constant_(self.gates.bias, math.log(gate / (1 - gate)))

    def begin(self, start: Tensor, context: Context) -> tuple[Tensor, Memory]:
        task = self.represent(context.support_x, context.support_y)
        root = self.levels(task.unsqueeze(1)).squeeze(1)
        return start * torch.sigmoid(self.gates(torch.cat([task, root], 1))), None

    def represent(self, x: Tensor, y: Tensor) -> Tensor:
        """Tasks as vectors `[T, d]` that do not depend on the order of their examples."""
        pooled: Tensor = self.encoder(self.pairs(x, y)).mean(1)
        return torch.relu(self.aggregate(pooled))

    def pairs(self, x: Tensor, y: Tensor) -> Tensor:
        """What examples look like, and what they are said to be: `[T, S, features + outputs]`."""
        seen = self.embedding(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        return torch.cat([seen, one_hot(y, self.outputs, seen)], 2)

    def reconstruction_losses(self, x: Tensor, y: Tensor) -> Tensor:
        """How much of the examples of each task its encoder forgets: `[T]`."""
        pairs = self.pairs(x, y)
        again: Tensor = self.decoder(self.encoder(pairs))
        return 0.5 * (pairs - again).square().mean((1, 2))


def _embedding(network: nn.Module) -> tuple[nn.Module, int]:
    """A view of single inputs, and how many features it has."""
    first = next((m for m in network.modules() if isinstance(m, (nn.Conv2d, nn.Linear))), None)
    if isinstance(first, nn.Linear):
        return nn.Flatten(), first.in_features
    if first is None:
        raise UsageError("model: it has neither a convolution nor a linear layer to tell its inputs by")
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
    """The exact meta-gradient of the query loss and, `reconstruction` (ξ) times, of the autoencoder's."""

    def __init__(self, *, reconstruction: float = 0.01) -> None:
        at_least(0, reconstruction=reconstruction)
        self.reconstruction = reconstruction

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        rule = require_path(learner).rule
        if not isinstance(rule, HSML):
            raise UsageError(f"method: {type(rule).__name__} has no autoencoder")
        losses = learner.task_losses(episodes)
        forgotten = rule.reconstruction_losses(episodes.support_x, episodes.support_y)
        ((losses + self.reconstruction * forgotten).sum() * weight).backward()
        return losses.detach()


METHOD = Method(
    "hsml",
    "gates the start by the cluster that a task belongs to",
    "Yao, Wei, Huang and Li, ICML 2019, arXiv:1905.05301",
    2019,
    HSML,
    meta_gradient=Reconstructing,
)
