"""LSTM learner (Hochreiter, Younger and Conwell, ICANN 2001, "Learning to learn using gradient descent").

    hₜ, cₜ = LSTM([xₜ, yₜ₋₁]; hₜ₋₁, cₜ₋₁),  t = 1 … S          support set in sequence, y₀ = 0
    ŷ = W h,   h = LSTM([x, y_S]; h_S, c_S)                     prediction for a query x, one more step

Nothing is updated when a task is learned: the network reads the examples one after another, each with the
label of the one before it, and what it knows of the task is its state h, c `[T, hidden]`. The learning
algorithm that the state follows is found by gradient descent over many tasks. xₜ are features `[T, F]`.

Departures from the authors' program:

- The loss counts at queries only, and each query starts from the state after the support set. So predictions
  do not depend on the other queries. The authors count the error of every prediction along one sequence.
- The LSTM has forget gates (Gers, Schmidhuber and Cummins, 2000), which theirs does not have.
- Images are read as features of a network that is trained with the LSTM; the authors have vectors.
- Theirs has six memory blocks, for functions of two variables; by default there are `hidden` = 200 cells, as
  in the LSTM that Santoro and others (arXiv:1605.06065) compare with on images.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pathaware.core.head import Fitted, Head, one_hot
from pathaware.core.settings import at_least
from pathaware.methods.method import Method


class SequenceLearner(Head):
    """Reads the support set into the state of an LSTM with `hidden` cells in each of `layers` layers."""

    regression = True
    fixed_ways = True

    def __init__(self, network: nn.Module, *, hidden: int = 200, layers: int = 1) -> None:
        super().__init__(network)
        at_least(1, hidden=hidden, layers=layers)
        sizes = [self.features + self.outputs, *[hidden] * layers]
        self.cells = nn.ModuleList(map(nn.LSTMCell, sizes[:-1], sizes[1:]))
        self.decode = nn.Linear(hidden, self.outputs)

    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        labels = one_hot(targets, self.outputs, features)
        zeros = features.new_zeros(len(features), self.decode.in_features)
        state = [zeros] * (2 * len(self.cells))
        before = torch.zeros_like(labels[:, 0])
        for x, y in zip(features.unbind(1), labels.unbind(1), strict=True):
            state = self.read(x, before, state)
            before = y
        return before, *state

    def predict(self, fitted: Fitted, features: Tensor) -> Tensor:
        tasks, queries, _ = features.shape
        before, *state = (part.repeat_interleave(queries, dim=0) for part in fitted)
        top = self.read(features.flatten(0, 1), before, state)[-2]
        predictions: Tensor = self.decode(top)
        return predictions.view(tasks, queries, -1)

    def read(self, x: Tensor, label: Tensor, state: list[Tensor]) -> list[Tensor]:
        """The state [h, c, …], layer by layer, after `x [N, F]` and the label `[N, outputs]` before it."""
        below, after = torch.cat([x, label], 1), []
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
