"""MeTAL, a loss that adapts to the task (Baik, Choi, Kim, Cho, Min and Lee, ICCV 2021, arXiv:2110.03909).

    τⱼ = [L(θⱼ), layer-wise means of θⱼ]                           state of a task, `[T, 1 + layers]`
    φ′ⱼ = (1 + γⱼ) φⱼ + δⱼ,   (γⱼ, δⱼ) = g_ψ(τⱼ)                    for each tensor of φⱼ one of each
    θⱼ₊₁ = θⱼ − α ∇(L(θⱼ) + mean over the support of l_φ′(τⱼ, f(x), y))

Each step has a loss l_φ and an adapter g_ψ of its own. Queries have a second pair of them, which adds the
mean of l(means of θⱼ, f(x), −entropy of f(x)) where queries are known; without them the method is inductive.
Values, unlike classes, have no entropy: it is nought there.

As in MAML, support and queries pass through the network by themselves; the authors pass them together, which
shares the statistics of batch norm. The last layer of l_φ begins at zero, so that training begins with MAML.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.head import last_linear, one_hot
from pathaware.core.learner import Context
from pathaware.methods.layerwise import layer_means, perceptron
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method


class AdaptiveLoss(nn.Module):
    """l_φ with its adapter g_ψ: a number for each example, `[T, N]`, that the task has a say in.

    `features` describe an example, `states` a task. γ and δ are answers of the adapter times `multipliers`
    and `offsets`, which begin at zero: tasks share one loss until it pays not to.
    """

    def __init__(self, features: int, states: int) -> None:
        super().__init__()
        self.loss = perceptron(features, 1, first=0.0)
        tensors = len(list(self.loss.parameters()))
        self.adapter = perceptron(states, 2 * tensors)
        self.multipliers = nn.Parameter(torch.zeros(tensors))
        self.offsets = nn.Parameter(torch.zeros(tensors))

    def forward(self, features: Tensor, states: Tensor) -> Tensor:
        """From `features [T, N, F]` of examples and `states [T, G]` of tasks."""
        gamma, delta = (part[:, :, None, None] for part in self.adapter(states).chunk(2, dim=1))
        scale = 1 + self.multipliers[:, None, None] * gamma
        shift = self.offsets[:, None, None] * delta
        own = [scale[:, i] * phi + shift[:, i] for i, phi in enumerate(self.loss.parameters())]
        weight, bias, last_weight, last_bias = own
        hidden = F.relu(features @ weight.transpose(1, 2) + bias)
        answers: Tensor = hidden @ last_weight.transpose(1, 2) + last_bias
        return answers.squeeze(2)


class TaskAdaptiveLoss(GradientDescent):
    """Gradient descent of the support loss and a learned one. `transductive`: whether it looks at queries."""

    def __init__(
        self, network: nn.Module, steps: int = 5, *, rate: float = 0.01, transductive: bool = True
    ) -> None:
        super().__init__(network, steps, rate=rate)
        _, head = last_linear(network)
        layers, outputs = len(self.layout.entries), head.out_features
        shown = 1 + layers + 2 * outputs
        self.support = nn.ModuleList(AdaptiveLoss(shown, 1 + layers) for _ in range(steps))
        seen = layers + outputs + 1
        self.query = nn.ModuleList(AdaptiveLoss(seen, seen) for _ in range(steps if transductive else 0))

    def objective(self, j: int, point: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        j = min(j, self.steps - 1)
        outputs = context.predict(point, context.support_x)
        losses = context.losses(outputs, context.support_y)
        means = layer_means(self.layout, point)
        state = torch.cat([losses[:, None], means], dim=1)
        known = one_hot(context.support_y, outputs.shape[2], outputs)
        features = standardised(torch.cat([of_each(state, outputs), outputs, known], dim=2))
        descended = losses + self.support[j](features, standardised(state)).mean(1)
        if len(self.query) and context.query_x is not None:
            outputs = context.predict(point, context.query_x)
            doubts = negative_entropy(outputs)
            if context.support_y.is_floating_point():
                doubts = torch.zeros_like(doubts)
            features = standardised(torch.cat([of_each(means, outputs), outputs, doubts], dim=2))
            descended = descended + self.query[j](features, features.mean(1)).mean(1)
        return losses, descended


def of_each(state: Tensor, outputs: Tensor) -> Tensor:
    """A task's state `[T, G]` beside every example of `outputs [T, N, O]`: `[T, N, G]`."""
    return state[:, None].expand(-1, outputs.shape[1], -1)


def negative_entropy(outputs: Tensor) -> Tensor:
    """Of logits `[T, N, classes]`: `[T, N, 1]`."""
    logs = outputs.log_softmax(2)
    return (logs.exp() * logs).sum(2, keepdim=True)


def standardised(values: Tensor) -> Tensor:
    """All that is known of a task `[T, …]`, with mean nought and variance one."""
    axes = tuple(range(1, values.ndim))
    variance, mean = torch.var_mean(values, axes, keepdim=True)
    return (values - mean) / (variance + 1e-12).sqrt()


METHOD = Method(
    "metal",
    "descends a learned loss beside the support loss, which tasks adapt",
    "Baik, Choi, Kim, Cho, Min and Lee, ICCV 2021, arXiv:2110.03909",
    2021,
    TaskAdaptiveLoss,
    queries=True,
)
