"""Meta networks (Munkhdalai and Yu, ICML 2017, arXiv:1703.00837).

    L_emb = CE(Q₂ ReLU(Q₁ f), y)                           of support examples with features f `[T, S, F]`
    Q₁* = d(x(∇_{Q₁} L_emb); G)                            fast weights of a task            `[T, H, F]`
    rᵢ = Q₁ fᵢ + Q₁* fᵢ                                    keys                              `[T, S, H]`
    Wᵢ* = m(x(∇_W CE(W₂ ReLU(W₁ fᵢ), yᵢ)); Z)              fast weights of each example, in memory
    aᵢ = softmaxᵢ(τ cos(rᵢ, r))                            a query's attention               `[T, Q, S]`
    W* = Σᵢ aᵢ Wᵢ*                                         its fast weights
    v = ReLU(W₁ f) + ReLU(W₁* f),  logits = W₂ v + W₂* v   layer augmentation                `[T, Q, ways]`

Loss gradients are meta information. The meta learner (Q, G, Z) turns those of the base learner (W) into fast
weights, one set per support example, and stores them with keys. A query reads the fast weights of examples
like it, which act beside the slow weights. d is an LSTM over five parts of the support set, m a network of
three layers; both see a gradient coordinate by coordinate, preprocessed by x as in L2L with p = 7. Gradients
are held constant.

Departures from the authors' code:

- Base and meta learner share the convolutions, which have slow weights only. Theirs are separate networks, in
  which convolutions have fast weights, too. So the adaptable part is the fully-connected layers.
- There is one m, as there are no fast weights of convolutions, for which theirs has a second one.
- τ is learned. In the paper it is one; since cosines of features are close to one, a query at first reads all
  examples about equally, and learning starts slowly.
- The last layers of d and m are initialised to a tenth of PyTorch's default and zero biases: fast weights
  begin small, so that they do not drown the slow ones.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.head import Fitted, Head, one_hot
from pathaware.core.settings import at_least, positive
from pathaware.methods.l2l import CoordinateLSTM
from pathaware.methods.lstm_cell import coordinatewise
from pathaware.methods.meta_lstm import preprocessed
from pathaware.methods.method import Method

P = 7.0
"""p of the preprocessing, as in the authors' code."""

PARTS = 5
"""Number of parts in which d reads the support set's gradients of L_emb, one after another."""


class TwoLayers(nn.Module):
    """W₂ ReLU(W₁ f), without biases, and its loss gradients in closed form."""

    def __init__(self, features: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, hidden, bias=False)
        self.second = nn.Linear(hidden, outputs, bias=False)

    @torch.no_grad()
    def gradients(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of each example's cross-entropy, `[T, S, H, F]` and `[T, S, outputs, H]`; constants."""
        hidden = self.first(features).relu()
        at_output = self.second(hidden).softmax(-1) - labels
        at_hidden = (at_output @ self.second.weight) * (hidden > 0)
        return _outer(at_hidden, features), _outer(at_output, hidden)


class MetaNetworks(Head):
    """Fast weights from loss gradients, read from memory by attention.

    - `hidden`: H, the units of the base learner and the size of keys.
    - `generator`: the units of d and of each hidden layer of m; `sharpness`: the initial τ.
    """

    def __init__(
        self, network: nn.Module, *, hidden: int = 64, generator: int = 20, sharpness: float = 10.0
    ) -> None:
        super().__init__(network)
        at_least(1, hidden=hidden, generator=generator)
        positive(sharpness=sharpness)
        self.base = TwoLayers(self.features, hidden, self.outputs)
        self.embedding = TwoLayers(self.features, hidden, self.outputs)
        self.task_lstm = CoordinateLSTM(2, generator)
        self.task_output = nn.Linear(generator, 1)
        self.generator_first = nn.Linear(2, generator)
        self.generator_second = nn.Linear(generator, generator)
        self.generator_output = nn.Linear(generator, 1)
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(sharpness)))
        for last in (self.task_output, self.generator_output):
            nn.init.uniform_(last.weight, -0.1 / math.sqrt(generator), 0.1 / math.sqrt(generator))
            nn.init.zeros_(last.bias)

    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        labels = one_hot(targets, self.outputs, features)
        fast_key = self.fast_key(features, labels)
        fast = [self.generate(gradient) for gradient in self.base.gradients(features, labels)]
        return fast_key, self.keys(features, fast_key), *fast

    def predict(self, fitted: Fitted, features: Tensor) -> Tensor:
        fast_key, keys, fast_first, fast_second = fitted
        query_keys = F.normalize(self.keys(features, fast_key), dim=-1)
        cosines = query_keys @ F.normalize(keys, dim=-1).mT
        attention = (self.log_sharpness.exp() * cosines).softmax(-1)
        hidden = self.base.first(features).relu() + read(attention, fast_first, features).relu()
        predictions: Tensor = self.base.second(hidden) + read(attention, fast_second, hidden)
        return predictions

    def fast_key(self, features: Tensor, labels: Tensor) -> Tensor:
        """Q₁* `[T, H, F]`: the output of d after the last part of the support set."""
        gradients, _ = self.embedding.gradients(features, labels)
        means = [part.mean(1) for part in gradients.tensor_split(min(PARTS, features.shape[1]), dim=1)]
        state = None
        for mean in means:
            state = self.task_lstm(preprocessed(mean.flatten(1), P), state)
        assert state is not None
        return coordinatewise(self.task_output, state[0]).view_as(means[0])

    def generate(self, gradients: Tensor) -> Tensor:
        """m: fast weights from the gradients `[T, S, …]` of the examples."""
        values = preprocessed(gradients.flatten(1), P)
        for layer in (self.generator_first, self.generator_second):
            values = coordinatewise(layer, values).relu()
        return coordinatewise(self.generator_output, values).view_as(gradients)

    def keys(self, features: Tensor, fast: Tensor) -> Tensor:
        """r `[T, N, H]`, by the sum of slow and fast weights."""
        keys: Tensor = self.embedding.first(features) + features @ fast.mT
        return keys


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-1) * b.unsqueeze(-2)


def read(attention: Tensor, memory: Tensor, inputs: Tensor) -> Tensor:
    """W* v for each query: the weights `memory [T, S, out, in]` in the proportions `attention [T, Q, S]`,
    applied to its `inputs [T, Q, in]`: `[T, Q, out]`."""
    each = torch.einsum("tsoi,tqi->tqso", memory, inputs)
    return (attention.unsqueeze(2) @ each).squeeze(2)


METHOD = Method(
    "meta-networks",
    "turns loss gradients into fast weights that queries read from a memory",
    "Munkhdalai and Yu, ICML 2017, arXiv:1703.00837",
    2017,
    MetaNetworks,
    order="first",
)
