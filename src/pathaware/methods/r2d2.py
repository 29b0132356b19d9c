"""R2-D2 (Bertinetto, Henriques, Torr and Vedaldi, ICLR 2019, arXiv:1805.08136).

    W = Xᵀ (X Xᵀ + λI)⁻¹ Y          ridge regression of labels on features, in the dual     [T, F, ways]
    Ŷ = α X′ W + β                  predictions for queries X′ [T, Q, F], as logits         [T, Q, ways]

X `[T, S, F]` are features of the support set, Y `[T, S, ways]` its labels as one-hot rows, or the values to
predict. The network, λ, α and β are learned; λ by its logarithm, which keeps it positive.

Departures from the authors' code:

- Features are divided by √F, so that the entries of X Xᵀ are about one in any network and one initial λ fits
  all networks; theirs are divided by the root of the number of examples. λ is initialised to 0.1 and learned;
  in their code it is 50 and constant unless asked for otherwise.
- One-hot labels have the height `scale` instead of one, without which the softmax would be nearly uniform
  until α has grown; theirs has α = 10⁻⁴ at first, or 10. Regression targets are not scaled.
- Batch norm sees the support set and the queries apart, as with all methods here; theirs sees both together.
- No constant feature is appended; a network can learn one where it helps.
- Training tasks have as many classes as evaluation tasks; theirs have more, 16 on miniImageNet.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pathaware.core.head import Fitted, Head, one_hot, solve
from pathaware.core.rule import Allowed
from pathaware.core.settings import positive
from pathaware.methods.method import Method

PAPER = "Bertinetto, Henriques, Torr and Vedaldi, ICLR 2019, arXiv:1805.08136"


class R2D2(Head):
    """One linear layer per task, fitted in closed form; `penalty`: initial λ, `scale`: height of labels."""

    allows: frozenset[Allowed] = frozenset({"more classes", "values", "weights"})

    def __init__(self, network: nn.Module, penalty: float = 0.1, scale: float = 10.0) -> None:
        super().__init__(network)
        positive(penalty=penalty, scale=scale)
        self.height = scale
        self.log_penalty = nn.Parameter(torch.tensor(math.log(penalty)))
        self.alpha = nn.Parameter(torch.tensor(1.0))
        self.beta = nn.Parameter(torch.tensor(0.0))

    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        return self._fit(features, targets, None)

    def fit_weighted(self, features: Tensor, targets: Tensor, weights: Tensor) -> Fitted:
        return self._fit(features, targets, weights.sqrt().unsqueeze(2))

    def _fit(self, features: Tensor, targets: Tensor, root: Tensor | None) -> Fitted:
        x = features / math.sqrt(self.features)
        weights = x.mT @ self.dual(x @ x.mT, one_hot(targets, self.outputs, features), root)
        return (weights if targets.is_floating_point() else self.height * weights,)

    def predict(self, fitted: Fitted, features: Tensor) -> Tensor:
        (weights,) = fitted
        return self.alpha * (features / math.sqrt(self.features) @ weights) + self.beta

    def dual(self, gram: Tensor, y: Tensor, root: Tensor | None = None) -> Tensor:
        """A `[T, S, outputs]` with W = XᵀA, from X Xᵀ `[T, S, S]` and Y `[T, S, outputs]`.

        `root [T, S, 1]` are the square roots of the weights of examples, if they have any.
        """
        unit = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        if root is None:
            return solve(gram + self.log_penalty.exp() * unit, y)
        return root * solve(root * gram * root.mT + self.log_penalty.exp() * unit, root * y)


METHOD = Method(
    "r2d2",
    "fits the last layer by ridge regression",
    PAPER,
    2019,
    R2D2,
    order="none",
)
