"""MeTAL, task-adaptive loss (Baik, Choi, Kim, Cho, Min and Lee, ICCV 2021, arXiv:2110.03909).

    τⱼ = [L(θⱼ), layer-wise means of θⱼ]                           state of a task, `[T, 1 + layers]`
    φ′ⱼ = (1 + γⱼ) φⱼ + δⱼ,   (γⱼ, δⱼ) = ηⱼ ∘ g_ψ(N(τⱼ))           one γ, one δ, two η per tensor of φⱼ
    θⱼ₊₁ = θⱼ − α ∇(L(θⱼ) + mean over the support of l_φ′(N(τⱼ, f(x), y)))
    minimise L(θₙ) over the support set and the queries together

Every step descends the support loss plus a learned loss l_φ, which an adapter g_ψ adjusts to the task. N
standardises all numbers of a task, over its examples and inputs together, to mean 0 and variance 1. The
factors η are learned and initialised to zero. Where the queries are known, a second pair of networks adds the
mean over queries of l(q), q = N(means of θⱼ, f(x), −entropy of f(x)); its adapter reads the mean of q over
the queries. Without it the method is inductive. In regression the entropy is zero.
Gains and shifts of norm layers do not adapt, as in the authors' code; with `adapt_norms` they do.

Departures from the authors' code:

- Support set and queries pass through the network separately, as in MAML, in the inner and in the outer loss.
  Theirs pass together and so share the statistics of batch norm.
- The last layer of l_φ is initialised to zero, so that training starts as MAML.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.episodes import Episodes
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.head import one_hot
from pathaware.core.last_layer import last_linear
from pathaware.core.learner import require_path
from pathaware.core.meta_gradient import MetaGradient, Unrolled
from pathaware.core.path import Order
from pathaware.core.rule import Context
from pathaware.methods.layerwise import Layers, joined, perceptron, standardised, without_norms
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method, once


class AdaptiveLoss(nn.Module):
    """A learned loss l_φ with its adapter g_ψ: one number per example, `[T, N]`.

    `features` and `states` are the sizes of what describes an example and a task. γ and δ are the adapter's
    outputs times `multipliers` and `offsets`, which are initialised to zero: at first all tasks share a loss.
    """

    def __init__(self, features: int, states: int) -> None:
        super().__init__()
        self.loss = perceptron(features, 1, output=0.0)
        self.tensors = Layers([phi.numel() for phi in self.loss.parameters()])
        tensors = len(self.tensors.sizes)
        self.adapter = perceptron(states, 2 * tensors)
        self.multipliers = nn.Parameter(torch.zeros(tensors))
        self.offsets = nn.Parameter(torch.zeros(tensors))

    def forward(self, features: Tensor, states: Tensor) -> Tensor:
        """Losses `[T, N]` from `features [T, N, F]` of examples and `states [T, G]` of tasks."""
        weight, bias, last_weight, last_bias = self.adapted(states)
        hidden = F.relu(torch.baddbmm(bias, features, weight.mT))
        return torch.baddbmm(last_bias, hidden, last_weight.mT).squeeze(2)

    def adapted(self, states: Tensor) -> list[Tensor]:
        """φ′ of each task, one `[T, …, …]` per tensor: all of them are scaled and shifted as one vector."""
        phi = list(self.loss.parameters())
        factors = torch.stack([self.multipliers, self.offsets])
        predicted = self.adapter(states).view(-1, *factors.shape) * factors
        flat = torch.cat([tensor.flatten() for tensor in phi])
        scales, shifts = self.tensors.spread(predicted.flatten(0, 1)).view(-1, 2, len(flat)).unbind(1)
        own = torch.addcmul(flat + shifts, scales, flat).split_with_sizes(self.tensors.sizes, dim=1)
        return [part.view(len(states), -1, tensor.shape[-1]) for part, tensor in zip(own, phi, strict=True)]


class TaskAdaptiveLoss(GradientDescent):
    """Gradient descent of the support loss plus a learned loss; `transductive`: also of the queries."""

    def __init__(
        self,
        network: nn.Module,
        steps: int = 5,
        *,
        rate: float = 0.01,
        transductive: bool = True,
        adapt_norms: bool = False,
    ) -> None:
        super().__init__(without_norms(network, adapt_norms), steps, rate=rate)
        _, head = last_linear(network)
        layers, outputs = len(self.layout.entries), head.out_features
        self.layers = Layers(self.layout.sizes)
        features = 1 + layers + 2 * outputs
        self.support = nn.ModuleList(AdaptiveLoss(features, 1 + layers) for _ in range(steps))
        features = layers + outputs + 1
        if transductive:
            self.allows = self.allows | {"joint queries"}
        queried = steps if transductive else 0
        self.query = nn.ModuleList(AdaptiveLoss(features, features) for _ in range(queried))

    def default_meta_gradient(self) -> MetaGradient:
        return SupportAndQueries()

    def objective(self, j: int, point: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        j = min(j, self.steps - 1)
        outputs = context.predict(point, context.support_x)
        losses = context.losses(outputs, context.support_y)
        means = self.layers.means(point)
        state = joined([losses[:, None], means], 1)
        labels = one_hot(context.support_y, outputs.shape[2], outputs)
        features = standardised(joined([per_example(state, outputs), outputs, labels], 2))
        descended = losses + self.support[j](features, standardised(state)).mean(1)
        if len(self.query) and context.query_x is not None:
            outputs = context.predict(point, context.query_x)
            certainty = negative_entropy(outputs)
            if context.support_y.is_floating_point():
                certainty = torch.zeros_like(certainty)
            features = standardised(joined([per_example(means, outputs), outputs, certainty], 2))
            descended = descended + self.query[j](features, features.mean(1)).mean(1)
        return losses, descended


class SupportAndQueries(Unrolled):
    """The meta-gradient of the loss on support set and queries together; or, without `outer_support`, on the
    queries."""

    def __init__(self, *, outer_support: bool = True) -> None:
        super().__init__()
        self.outer_support = outer_support

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        if not self.outer_support:
            return super().backward(learner, episodes, weight)
        losses = self.losses(learner, episodes)
        (losses.sum() * weight).backward()
        return losses.detach()

    def losses(self, learner: FewShotLearner, episodes: Episodes, order: Order = "second") -> Tensor:
        """The mean loss of all examples of each task, `[T]`, after adaptation to its support set."""
        learner = require_path(learner)
        x, y, query_x, query_y = episodes.tensors()
        end = learner.end(learner.path(x, y, order=order, query_x=query_x))
        support, queries = x.shape[1], query_x.shape[1]
        losses = learner.execution.query_losses
        total = support * losses(end, x, y) + queries * losses(end, query_x, query_y)
        return total / (support + queries)


def per_example(state: Tensor, outputs: Tensor) -> Tensor:
    """Repeat a task's state `[T, G]` for every example of `outputs [T, N, O]`: `[T, N, G]`."""
    return state[:, None].expand(-1, outputs.shape[1], -1)


def negative_entropy(outputs: Tensor) -> Tensor:
    """Σ p log p `[T, N, 1]` of logits `[T, N, classes]`."""
    logs = outputs.log_softmax(2)
    return (logs.exp() * logs).sum(2, keepdim=True)


METHOD = Method(
    "metal",
    "adds a learned, task-adaptive loss to the support loss",
    "Baik, Choi, Kim, Cho, Min and Lee, ICCV 2021, arXiv:2110.03909",
    2021,
    TaskAdaptiveLoss,
    meta_gradient=SupportAndQueries,
    transductive=True,
    version=2,
    earlier=once(adapt_norms=True, outer_support=False),
)
