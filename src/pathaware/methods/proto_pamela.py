"""Proto-PAMELA, after Proto-MAML (Triantafillou et al., ICLR 2020, arXiv:1903.03096).

    zᵢ   = f(xᵢ)^γ − μ, divided by its length                      features of image i           [T, S, F]
    w⁰_k = mean of z over the support images of class k            one row per class             [T, K, F]
    wʲ⁺¹ = wʲ − Qⱼ ∘ ∇L(wʲ)                                        PAMELA's step; every w steps:
    wʲ⁺¹ = (1 − Pⱼ)(wʲ − Qⱼ ∘ ∇L(wʲ)) + Pⱼ wʲ⁻ʷ                    gradient skip
    Qⱼ   = exp(qⱼ + a log K + b log s_k)                           s_k: support images of class k
    p(y = k | x) ∝ exp(τ ⟨z, w_k/‖w_k‖⟩),  τ = exp(t + c log K + d log s̄)

Proto-MAML begins the inner loop at the class means, with one linear head for any number of classes. Here the
inner loop is a path of PAMELA on that head alone, and step sizes and temperature depend on the number of
classes and of images by a learned rule. So one model serves any number of classes and any, also unequal,
numbers of images. Rows are equal in all but their images: the order and the names of classes do not matter.
γ, μ, q, P, a, b, c, d and t are learned, with the network or, on a frozen network, alone. L is the
cross-entropy of the support set in which every class has the same weight.

Departures from the authors' program:

- Theirs adapts the whole network by gradient descent of a constant step size; here only the head adapts.
- Logits are cosines times a temperature, theirs are Euclidean: 2⟨z, w_k⟩ − ‖w_k‖².
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.head import Fitted, Head, one_hot
from pathaware.core.settings import at_least
from pathaware.methods.method import Method

ABSENT = -1e4
"""The logit of a class without support images."""


class ProtoPamela(Head):
    """A linear head that begins at the class means and follows a learned path.

    - `steps`: n, 0 for the class means alone; `skip`: the interval w, or none; `rate`: initial step size.
    - `scale`: initial temperature τ; `power`: initial γ.
    """

    any_shots = True

    def __init__(
        self,
        network: nn.Module,
        steps: int = 5,
        *,
        rate: float = 0.1,
        skip: int | None = 2,
        scale: float = 10.0,
        power: float = 0.5,
    ) -> None:
        super().__init__(network)
        at_least(0, steps=steps)
        if skip is not None and skip < 1:
            raise UsageError(f"skip: {skip} is not allowed; at least 1, or none")
        for name, value in (("rate", rate), ("scale", scale), ("power", power)):
            if value <= 0:
                raise UsageError(f"{name}: {value} is not allowed; above 0")
        self.steps, self.interval = steps, skip or max(1, steps)
        self.skips = range(self.interval, steps, self.interval)
        self.log_q = nn.Parameter(torch.full((steps,), rate).log())
        self.q_rule = nn.Parameter(torch.tensor([1.0, 0.0]))  # rows of many classes have small gradients
        self.p = nn.Parameter(torch.zeros(len(self.skips)))
        self.log_scale = nn.Parameter(torch.tensor(scale).log())
        self.scale_rule = nn.Parameter(torch.zeros(2))
        self.centre = nn.Parameter(torch.zeros(self.features))
        self.log_power = nn.Parameter(torch.tensor(power).log())

    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        """Return the rows `[T, K, F]`, the temperature `[T]` and which classes have examples `[T, K]`.

        Examples of the label −1 are ignored.
        """
        z, y = self.prepared(features), one_hot(targets, self.outputs, features)
        shots = y.sum(1)  # [T, K]
        known = shots > 0
        log_shots, log_ways = shots.clamp(min=1).log(), known.sum(1, keepdim=True).to(z).log()
        weight = (
            y / shots.clamp(min=1).unsqueeze(1) / known.sum(1)[:, None, None]
        )  # of example i for its class
        mean_log_shots = (log_shots * known).sum(1, keepdim=True) / known.sum(1, keepdim=True)
        log_scale = self.log_scale + self.scale_rule[0] * log_ways + self.scale_rule[1] * mean_log_shots
        scale = log_scale.exp()  # [T, 1]
        rows = [weight.mT @ z * known.sum(1)[:, None, None]]
        step_rule = self.q_rule[0] * log_ways + self.q_rule[1] * log_shots  # [T, K]
        own = weight.sum(2, keepdim=True)  # of example i: [T, S, 1]
        for j in range(self.steps):
            error = own * self.logits(rows[-1], scale, known, z).softmax(2) - weight
            moved = rows[-1] - (self.log_q[j] + step_rule).exp().unsqueeze(2) * (error.mT @ z)
            if j in self.skips:
                moved = torch.lerp(moved, rows[j - self.interval], self.p[j // self.interval - 1])
            rows.append(moved)
        return rows[-1], scale, known

    def predict(self, fitted: Fitted, features: Tensor) -> Tensor:
        rows, scale, known = fitted
        return self.logits(rows, scale, known, self.prepared(features))

    def prepared(self, features: Tensor) -> Tensor:
        """z, from the network's features."""
        powered = features.sign() * (features.abs() + 1e-6) ** self.log_power.exp()
        return F.normalize(F.normalize(powered, dim=-1) - self.centre, dim=-1)

    @staticmethod
    def logits(rows: Tensor, scale: Tensor, known: Tensor, z: Tensor) -> Tensor:
        cosines = z @ F.normalize(rows, dim=-1).mT
        return (scale.unsqueeze(2) * cosines).masked_fill(~known.unsqueeze(1), ABSENT)


METHOD = Method(
    "proto-pamela",
    "follows a learned path from the class means, for any number of classes and images",
    "Triantafillou et al., ICLR 2020, arXiv:1903.03096",
    2020,
    ProtoPamela,
    order="second",
)
