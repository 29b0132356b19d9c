"""LSTM learner (Hochreiter, Younger and Conwell, ICANN 2001, "Learning to learn using gradient descent").

    hₜ, cₜ = LSTM([xₜ, yₜ]; hₜ₋₁, cₜ₋₁),  t = 1 … S              the support set in sequence
    ŷ = W h,   h = LSTM([x, 0]; h_S, c_S)                        prediction for a query x, one more step

No weight is updated when a task is learned: the network reads the examples one after another, and what it
knows of the task is its state h, c `[T, hidden]`. The learning algorithm that the state follows is found by
gradient descent over many tasks. xₜ are features `[T, F]`, normalised to zero mean and unit variance.

Departures from the authors' code:

- A label comes with its example. With `label = "after"` it comes with the next one, as in theirs: xₜ with
  yₜ₋₁, and a query with y_S. The network must then also learn to keep an example until its label comes, which
  takes several times as many iterations.
- The loss counts at queries only, and each query starts from the state after the support set. So predictions
  do not depend on the other queries. The authors count the error of every prediction along one sequence.
- The LSTM has forget gates (Gers, Schmidhuber and Cummins, 2000), which theirs does not have. They are
  initialised open, as if there were none.
- Weights are initialised so that features, labels and state each contribute a variance of one or more to
  every gate. With PyTorch's default, gates are almost constant at first, and nothing is learned for long.
- Images are read as features of a network that is trained with the LSTM; the authors' inputs are vectors.
- There are 200 cells, as in the LSTM that Santoro and others (arXiv:1605.06065) compare with. The authors
  have six blocks of cells, for functions of two variables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.head import Fitted, Head, one_hot
from pathaware.core.rule import Allowed
from pathaware.core.settings import at_least, one_of
from pathaware.methods.method import Method

Label = Literal["with", "after"]

OPEN = 3.0
"""Initial bias of forget gates: they keep σ(3) = 95 % of the state per step."""

LABEL = 2.0
"""Initial standard deviation of the weights of labels, of which one is 1 and the others are 0."""


class SequenceLearner(Head):
    """Reads the support set into the state of an LSTM with `hidden` cells in each of `layers` layers.

    `label`: a label comes `with` its example or `after` it, with the next one.
    """

    allows: frozenset[Allowed] = frozenset({"values"})

    def __init__(
        self, network: nn.Module, *, hidden: int = 200, layers: int = 1, label: Label = "with"
    ) -> None:
        super().__init__(network)
        at_least(1, hidden=hidden, layers=layers)
        one_of(Label, label=label)
        self.after = label == "after"
        sizes = [self.features + self.outputs, *[hidden] * layers]
        cells = [nn.LSTMCell(*size) for size in pairwise(sizes)]
        for i, cell in enumerate(cells):
            nn.init.normal_(cell.weight_ih, std=1 / math.sqrt(hidden if i else self.features))
            nn.init.normal_(cell.weight_hh, std=1 / math.sqrt(hidden))
            nn.init.zeros_(cell.bias_ih)
            nn.init.zeros_(cell.bias_hh)
            nn.init.constant_(cell.bias_ih[hidden : 2 * hidden], OPEN)
        nn.init.normal_(cells[0].weight_ih[:, self.features :], std=LABEL)
        self.cells = nn.ModuleList(cells)
        self.decode = nn.Linear(hidden, self.outputs)

    def class_blocks(self) -> Mapping[str, tuple[int, Sequence[int]]]:
        return {"cells.0.weight_ih": (1, (self.features, self.outputs))}

    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        labels = one_hot(targets, self.outputs, features)
        zeros = features.new_zeros(len(features), self.decode.in_features)
        state = [zeros] * (2 * len(self.cells))
        none = torch.zeros_like(labels[:, :1])
        seen = torch.cat([none, labels] if self.after else [labels, none], 1).unbind(1)
        for x, y in zip(features.unbind(1), seen[:-1], strict=True):
            state = self.read(x, y, state)
        return seen[-1], *state

    def predict(self, fitted: Fitted, features: Tensor) -> Tensor:
        tasks, queries, _ = features.shape
        label, *state = (part.repeat_interleave(queries, dim=0) for part in fitted)
        top = self.read(features.flatten(0, 1), label, state)[-2]
        predictions: Tensor = self.decode(top)
        return predictions.view(tasks, queries, -1)

    def read(self, x: Tensor, label: Tensor, state: list[Tensor]) -> list[Tensor]:
        """The state [h, c, …], layer by layer, after `x [N, F]` and a label `[N, outputs]`."""
        below, after = torch.cat([F.layer_norm(x, x.shape[1:]), label], 1), []
        for cell, h, c in zip(self.cells, state[::2], state[1::2], strict=True):
            h, c = cell(below, (h, c))
            after += [h, c]
            below = h
        return after


METHOD = Method(
    "lstm",
    "reads examples and labels in sequence; its state is what it has learned",
    "Hochreiter, Younger and Conwell, ICANN 2001",
    2001,
    SequenceLearner,
    order="none",
)
