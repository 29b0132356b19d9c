"""Proto-PAMELA, after Proto-MAML (Triantafillou et al., ICLR 2020, arXiv:1903.03096).

    v = sign f(x) ∘ |f(x)|^β                                       features of an image          [T, S, F]
    u = A v / ‖A v‖,  A² = (Σ + λI)⁻¹
    z = (u − κ c) / ‖u − κ c‖                                      c: mean of the class means of u
    W₀ = means of z by class, each divided by its length           one row per class             [T, K, F]
    Wⱼ₊₁ = Wⱼ − Qⱼ ∘ ∇L(Wⱼ)                                       PAMELA's step
    Wⱼ₊₁ = (1 − Pⱼ)(Wⱼ − Qⱼ ∘ ∇L(Wⱼ)) + Pⱼ Wⱼ₋w                   where j mod w = 0 and j ≥ w
    Qⱼ = exp(qⱼ + a log K + b log s)                               s: support images of the row's class
    τ = exp(t + d log K + e m)                                     m: mean of log s
    p(y = k | x) ∝ exp(τ zᵀ w_k)                                   w_k: row k of Wₙ              [T, Q, K]

Proto-MAML begins the inner loop at the class means, with one linear head for any number of classes. Here the
inner loop is a path of PAMELA on that head alone, and step sizes and temperature depend on the number of
classes and of images by a learned rule. So one model serves any number of classes and any numbers of images,
equal or not. Q is the step size itself, not a multiplier as in PAMELA. Rows differ in their images only: the
order and the names of classes do not matter. L is the cross-entropy of the support set at temperature τ, with
the same weight for every class. λ, q, P, a, b, d, e and t are learned, with the network or, if it is frozen,
alone. Σ is the covariance of features within the training classes of a frozen network, in units of its mean
eigenvalue; otherwise it is I, which changes nothing. β and κ are constants, and β = 1 leaves features as they
are.

With `adaptive`, the exponent β, the shrinkage λ, the centring κ and the temperature τ follow learned rules,
exp(r₀ + r₁ log K + r₂ m + r₃ δ). δ measures how unlike the features of the training classes those of the
support set are: the mean of their squared Mahalanobis distances, in standard deviations from that of training
images, clipped to ±3. So features can be whitened where Σ describes them, and flattened and centred where it
does not. The power transform of features is that of Yang, Liu and Xu (ICLR 2021, arXiv:2101.06395).

With `anchors`, the means of training classes complete those of a task, after the same paper:

    h_k = n(mean of u over class k)                                n(a) = a / ‖a‖
    g_k = n(Mᵀ softmax(α M h_k))                                   M: u of means of n(f) by training class
    w_k = n(n(h_k + ρ g_k) − κ c)                                  row k of W₀

ρ follows a rule like the others, and α is learned. One image says little about its class, and the training
classes that look like it say more.

Departures from the authors' code:

- Theirs adapts the whole network by gradient descent with a constant step size; here only the head adapts.
- Features and initial rows have unit length. Theirs have any length, and a bias of −‖w⁰_k‖².
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.errors import UsageError
from pathaware.core.head import Fitted, WhitenedHead, one_hot
from pathaware.core.rule import Allowed
from pathaware.core.settings import at_least, positive
from pathaware.methods.method import Method

ABSENT = -1e4
"""The logit of a class without support images."""
SMALLEST_SIZE = 1e-3
"""Added to the size of a feature, in units of the root mean square, for a gradient of its power at zero."""


class ProtoPamela(WhitenedHead):
    """A linear head that begins at the class means and follows a learned path.

    - `steps`: n, 0 for the class means alone; `skip`: the interval w, or none; `rate`: initial step size.
    - `scale`: initial temperature τ; `centring`: κ; `power`: β; `shrinkage`: initial λ, or none: A is I.
    - `adaptive`: β, λ, κ and τ follow learned rules from these values; without it κ and β are constant.
    - `anchors`: number of training classes whose means complete those of a task; needs `adaptive`.
    """

    allows: frozenset[Allowed] = frozenset({"more classes", "any shots", "weights"})

    def __init__(
        self,
        network: nn.Module,
        steps: int = 5,
        *,
        rate: float = 0.1,
        skip: int | None = 2,
        scale: float = 10.0,
        shrinkage: float | None = 3.0,
        centring: float = 0.5,
        power: float = 1.0,
        adaptive: bool = False,
        anchors: int = 0,
    ) -> None:
        super().__init__(network, whitened=shrinkage is not None, adaptive=adaptive, anchors=anchors)
        at_least(0, steps=steps)
        if skip is not None and skip < 1:
            raise UsageError(f"skip: {skip} is not allowed; must be at least 1, or none")
        positive(rate=rate, scale=scale, power=power)
        if shrinkage is not None:
            positive(shrinkage=shrinkage)
        elif adaptive:
            raise UsageError("shrinkage: none is not allowed with adaptive = true")
        at_least(0, centring=centring)
        if anchors and not adaptive:
            raise UsageError(f"anchors: {anchors} is not allowed without adaptive = true")
        self.centring, self.power = centring, power
        self.steps, self.interval = steps, skip or max(1, steps)
        self.skips = range(self.interval, steps, self.interval)
        self.log_q = nn.Parameter(torch.full((steps,), rate).log())
        self.q_rule = nn.Parameter(torch.tensor([1.0, 0.0]))  # rows of many classes have small gradients
        self.p = nn.Parameter(torch.zeros(len(self.skips)))
        self.log_scale = nn.Parameter(torch.tensor(scale).log())
        self.scale_rule = nn.Parameter(torch.zeros(2))
        if shrinkage is not None:
            self.log_shrinkage = nn.Parameter(torch.tensor(shrinkage).log())
        if adaptive:
            # r₀ … r₃ of each rule; those of λ and τ have a part of them above
            self.power_rule = nn.Parameter(torch.zeros(4))
            self.centring_rule = nn.Parameter(torch.zeros(4))
            self.shrinkage_rule = nn.Parameter(torch.zeros(3))
            self.scale_by_distance = nn.Parameter(torch.zeros(()))
        if anchors:
            self.anchor_rule = nn.Parameter(torch.tensor([0.2, 1.0, 1.0, 1.0]).log())  # ρ is 0.2 at first
            self.log_sharpness = nn.Parameter(torch.tensor(10.0).log())

    def fit(self, features: Tensor, targets: Tensor) -> Fitted:
        """Return rows `[T, K, F]`, temperature `[T, 1]`, which classes have examples `[T, K]`, the centre
        κ c `[T, 1, F]`, and β and λ `[T, 1]`. Examples of the label −1 are ignored."""
        return self.fit_weighted(features, targets, features.new_ones(targets.shape[:2]))

    def fit_weighted(self, features: Tensor, targets: Tensor, weights: Tensor) -> Fitted:
        """The weights are those of examples in the class means and in L; s and δ do not change."""
        y = one_hot(targets, self.outputs, features)
        shots = y.sum(1)  # [T, K]
        known = shots > 0
        ways = known.sum(1, keepdim=True).to(features)  # [T, 1]
        log_ways, log_shots = ways.log(), shots.clamp(min=1).log()
        mean_log_shots = log_shots.sum(1, keepdim=True) / ways
        log_scale = self.log_scale + self.scale_rule[0] * log_ways + self.scale_rule[1] * mean_log_shots
        power, centring = torch.full_like(ways, self.power), torch.full_like(ways, self.centring)
        shrinkage, about = ways, ways
        if self.whitened:
            shrinkage = self.log_shrinkage.exp().expand_as(ways)
        if self.adaptive:
            equal = y / (shots.clamp(min=1) * ways).unsqueeze(1)  # sums to one over each class, then over all
            distance = (self.distances(features).unsqueeze(1) @ equal).sum(2)
            delta = ((distance - self.typical[0]) * self.typical[1]).clamp(-3, 3)
            about = torch.cat([torch.ones_like(ways), log_ways, mean_log_shots, delta], 1)  # [T, 4]
            power = power * (about @ self.power_rule).exp().unsqueeze(1)
            centring = centring * (about @ self.centring_rule).exp().unsqueeze(1)
            shrinkage = shrinkage * (about[:, 1:] @ self.shrinkage_rule).exp().unsqueeze(1)
            log_scale = log_scale + self.scale_by_distance * delta
        scale, u = log_scale.exp(), self.prepared(features, power, shrinkage)
        log_rule = self.q_rule[0] * log_ways + self.q_rule[1] * log_shots  # [T, K]
        # weights of each example, in the column of its class: in the mean of class means, and in the loss
        given = y * weights.unsqueeze(2)
        in_mean = given / ((given.sum(1) + ~known) * ways).unsqueeze(1)
        in_loss = given / (shots.clamp(min=1) * ways).unsqueeze(1)
        centre = centring.unsqueeze(2) * (in_mean.sum(2).unsqueeze(1) @ u)
        z = F.normalize(u - centre, dim=-1)
        rows = [F.normalize(in_mean.mT @ z, dim=-1)]
        if self.anchors:
            means = self.prepared(self.anchor_means.expand(len(u), -1, -1), power, shrinkage)
            own = F.normalize(in_mean.mT @ u, dim=-1)
            alike = (self.log_sharpness.exp() * own @ means.mT).softmax(2) @ means
            share = (about @ self.anchor_rule).exp()[:, None, None]
            completed = F.normalize(own + share * F.normalize(alike, dim=-1), dim=-1)
            rows = [F.normalize(completed - centre, dim=-1)]
        for j in range(self.steps):
            gradient = self.gradient(rows[-1], scale, known, z, in_loss)
            moved = rows[-1] - (self.log_q[j] + log_rule).exp().unsqueeze(2) * gradient
            if j in self.skips:
                moved = torch.lerp(moved, rows[j - self.interval], self.p[j // self.interval - 1])
            rows.append(moved)
        return rows[-1], scale, known, centre, power, shrinkage

    def predict(self, fitted: Fitted, features: Tensor) -> Tensor:
        rows, scale, known, centre, power, shrinkage = fitted
        u = self.prepared(features, power, shrinkage)
        return self.logits(rows, scale, known, F.normalize(u - centre, dim=-1))

    def prepared(self, features: Tensor, power: Tensor, shrinkage: Tensor) -> Tensor:
        """u, from the network's features `[T, N, F]`, β and λ `[T, 1]`."""
        if self.adaptive or self.power != 1:
            size = features.abs() / features.square().mean(-1, keepdim=True).clamp(min=1e-12).sqrt()
            features = features * (size + SMALLEST_SIZE).pow(power.unsqueeze(2) - 1)
        if not self.whitened:
            return F.normalize(features, dim=-1)
        weights = (self.spread + shrinkage.unsqueeze(2)).rsqrt()
        # A up to a rotation, which changes nothing
        return F.normalize(features @ self.axes * weights, dim=-1)

    @staticmethod
    def logits(rows: Tensor, scale: Tensor, known: Tensor, z: Tensor) -> Tensor:
        return (scale.unsqueeze(2) * (z @ rows.mT)).masked_fill(~known.unsqueeze(1), ABSENT)

    def gradient(self, rows: Tensor, scale: Tensor, known: Tensor, z: Tensor, weights: Tensor) -> Tensor:
        """∇L `[T, K, F]`, the gradient of the cross-entropy with these weights `[T, S, K]` of examples."""
        probabilities = self.logits(rows, scale, known, z).softmax(2)
        error = weights.sum(2, keepdim=True) * probabilities - weights
        return scale.unsqueeze(2) * (error.mT @ z)


METHOD = Method(
    "proto-pamela",
    "follows a learned path from the class means, for any number of classes and images",
    "Triantafillou et al., ICLR 2020, arXiv:1903.03096",
    2020,
    ProtoPamela,
    order="second",
)
