"""Matching networks (Vinyals, Blundell, Lillicrap, Kavukcuoglu and Wierstra, NeurIPS 2016, arXiv:1606.04080).

    a(x, xᵢ) = softmaxᵢ(τ cos(f(x), g(xᵢ)))                   attention to the support set    [T, Q, S]
    log p(y | x) = log Σᵢ a(x, xᵢ) [yᵢ = y]                   predictions                     [T, Q, ways]

A query gets the labels of the support examples it attends to. By default f = g is the network. With full
context, embeddings depend on the whole support set: with the network as f′ = g′ and K = `reads`,

    g(xᵢ) = g′(xᵢ) + h→ᵢ + h←ᵢ                                two LSTMs over the support set, in its order
    f(x) = h_K,   h_k = f′(x) + LSTM([f′(x), r_k₋₁], h_k₋₁),   h₀ = f′(x)
    r_k = Σᵢ softmaxᵢ(h_k · g(xᵢ)) g(xᵢ)                      what h_k reads from the support set

Departures from the authors' code:

- τ is learned. In the paper it is one; since cosines are at most one, no prediction could be certain.
- r is part of the LSTM's input; in the paper it is part of its state. The gates see a linear map of both, so
  this is equivalent.
- With full context, predictions depend on the order of the support set, which the paper leaves open. It is
  random here, in training and in evaluation.
- We found no code by the authors; the paper is followed.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.head import Fitted, Head, one_hot
from pathaware.core.settings import at_least, positive
from pathaware.methods.method import Method


class Matching(Head):
    """Attention over the support set; `sharpness` is the initial τ, `full_context` and `reads` as above."""

    def __init__(
        self, network: nn.Module, sharpness: float = 10.0, full_context: bool = False, reads: int = 5
    ) -> None:
        super().__init__(network)
        positive(sharpness=sharpness)
        at_least(1, reads=reads)
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(sharpness)))
        self.context = FullContext(self.features, reads) if full_context else None

    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        if self.context is not None:
            features = self.context.support(features)
        return features, one_hot(targets, self.outputs, features)

    def predict(self, fitted: Fitted, features: Tensor) -> Tensor:
        support, labels = fitted
        if self.context is not None:
            features = self.context.query(features, support)
        cosines = F.normalize(features, dim=-1) @ F.normalize(support, dim=-1).mT
        attention = (self.log_sharpness.exp() * cosines).log_softmax(-1)
        # Finite instead of −∞: otherwise a class without examples would have a NaN gradient.
        others = (labels == 0).unsqueeze(1)
        return attention.unsqueeze(-1).masked_fill(others, torch.finfo(features.dtype).min / 2).logsumexp(2)


class FullContext(nn.Module):
    """Embeddings that depend on the whole support set."""

    def __init__(self, size: int, reads: int) -> None:
        super().__init__()
        self.reads = reads
        self.along = nn.LSTM(size, size, batch_first=True, bidirectional=True)
        self.reader = nn.LSTMCell(2 * size, size)

    def support(self, features: Tensor) -> Tensor:
        """g from g′ `[T, S, F]`."""
        both: Tensor = self.along(features)[0]
        forward, backward = both.chunk(2, dim=-1)
        return features + forward + backward

    def query(self, features: Tensor, support: Tensor) -> Tensor:
        """f from f′ `[T, Q, F]`, independently for every query."""
        inputs = features.flatten(0, 1)
        h, c = inputs, torch.zeros_like(inputs)
        for _ in range(self.reads):
            read = (h.view_as(features) @ support.mT).softmax(-1) @ support
            h, c = self.reader(torch.cat([inputs, read.flatten(0, 1)], dim=-1), (h, c))
            h = h + inputs
        return h.view_as(features)


METHOD = Method(
    "matching",
    "predicts by attention to the support set",
    "Vinyals, Blundell, Lillicrap, Kavukcuoglu and Wierstra, NeurIPS 2016, arXiv:1606.04080",
    2016,
    Matching,
    order="none",
)
