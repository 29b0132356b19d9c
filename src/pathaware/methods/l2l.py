"""L2L (Andrychowicz et al., NeurIPS 2016, arXiv:1606.04474).

    θⱼ₊₁ = θⱼ + s · uⱼ
    uⱼ, hⱼ₊₁ = m(x(∇L(θⱼ)), hⱼ; φ)                    m: an LSTM of two layers and a linear output
    minimise Σⱼ L_query(θⱼ), j = 1 … n, over φ        with every ∇L(θⱼ) held constant
    x(g) = (log|g| / p, sign g) where |g| ≥ e⁻ᵖ, else (−1, eᵖ g); p = 10

"Learning to learn by gradient descent by gradient descent": the whole update is the output of a learned
optimiser. One LSTM is shared by all D coordinates, each with its own state; the coordinates of a task that
have had no gradient yet share one state, which is computed once (`Columns`). The derivatives of inner
gradients are dropped, as in the authors' code, so no second derivative is taken.

Departures from the authors' code:

- θ₀ is learned, too, since few-shot tasks allow only a few steps; the authors draw it at random. That is
  `initialisation = "random"`: each training task starts from the network's random initialisation with the
  entries of every tensor permuted, which is another draw from the same distribution, and predictions start
  from the network's own. θ₀ is not learned then.
- The loss after each step is that of the query set; the authors minimise the loss that the optimiser
  descends.
- p is 10, as in the paper; their code has 5.
- One optimiser is shared by all parameters; for convolutional networks the authors have a second one for
  fully-connected layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from pathaware.core.episodes import Episodes
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.learner import require_path
from pathaware.core.meta_gradient import MetaGradient
from pathaware.core.parameters import Layout
from pathaware.core.rule import Allowed, Context, Memory, Rule
from pathaware.core.settings import at_least, one_of, positive
from pathaware.methods.lstm_cell import Columns, State, coordinatewise, lstm_cell
from pathaware.methods.meta_lstm import preprocessed
from pathaware.methods.method import Method

Initialisation = Literal["learned", "random"]


class CoordinateLSTM(nn.Module):
    """A layer of the LSTM that all coordinates share."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.gates = nn.Linear(inputs + hidden, 4 * hidden)

    def forward(self, x: Tensor, state: State | None) -> State:
        """h and c `[T, hidden, D]` after inputs `[T, inputs, D]`; D may be the number of columns."""
        return lstm_cell(x, state, self.gates.weight, self.gates.bias)


class LearnedOptimizer(Rule):
    """An LSTM that maps gradients to updates.

    `hidden` cells in each of `layers` layers; `scale` is s; `initialisation` is `learned` or `random`.
    """

    allows: frozenset[Allowed] = frozenset({"more classes", "values"})

    def __init__(
        self,
        network: nn.Module | Layout,
        steps: int = 5,
        *,
        hidden: int = 20,
        layers: int = 2,
        scale: float = 0.01,
        initialisation: Initialisation = "learned",
    ) -> None:
        super().__init__(network, steps)
        at_least(1, hidden=hidden, layers=layers)
        positive(scale=scale)
        one_of(Initialisation, initialisation=initialisation)
        self.scale, self.random = scale, initialisation == "random"
        self.cells = nn.ModuleList(CoordinateLSTM(hidden if i else 2, hidden) for i in range(layers))
        self.output = nn.Linear(hidden, 1)

    def default_meta_gradient(self) -> MetaGradient:
        return TrajectoryLoss()

    def begin(self, initial: Tensor, context: Context) -> tuple[Tensor, Memory]:
        if self.random:
            initial = initial.detach()
            if context.order != "none":
                initial = shuffled(initial, self.layout)
        return initial, (Columns(), [None] * len(self.cells))

    def advance(
        self, j: int, points: Sequence[Tensor], gradient: Tensor, losses: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        columns, states = memory
        columns, after = columns.after(gradient), []
        values = preprocessed(columns.gather(gradient.detach()))
        for cell, state in zip(self.cells, states, strict=True):
            after.append(cell(values, state))
            values = after[-1][0]
        update = columns.spread(coordinatewise(self.output, values)).squeeze(1)
        return torch.add(points[-1], update, alpha=self.scale), (columns, after)


def shuffled(point: Tensor, layout: Layout) -> Tensor:
    """A point `[T, D]` with the entries of each parameter tensor in a random order of its own."""
    parts = point.split(layout.sizes, dim=1)
    return torch.cat([p.gather(1, torch.rand_like(p).argsort(1)) for p in parts], dim=1)


class TrajectoryLoss(MetaGradient):
    """The gradient of the mean query loss along the path, with inner gradients held constant.

    `trajectory`: count the loss after every step, as the authors do; otherwise after the last step only.
    """

    def __init__(self, *, trajectory: bool = True) -> None:
        self.trajectory = trajectory

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        learner = require_path(learner)
        x, y = episodes.query_x, episodes.query_y
        path = learner.path(episodes.support_x, episodes.support_y, order="first", query_x=x)
        steps = len(path.points) - 1
        counted = range(1 if self.trajectory else steps, steps + 1)
        losses = torch.stack([learner.execution.query_losses(path.points[j], x, y) for j in counted])
        (losses.mean(0).sum() * weight).backward()
        return losses[-1].detach()


METHOD = Method(
    "l2l",
    "learns an optimiser, an LSTM whose output is the update",
    "Andrychowicz, Denil, Gomez, Hoffman, Pfau, Schaul, Shillingford and de Freitas, NeurIPS 2016, "
    "arXiv:1606.04474",
    2016,
    LearnedOptimizer,
    meta_gradient=TrajectoryLoss,
    order="first",
    version=2,
)
