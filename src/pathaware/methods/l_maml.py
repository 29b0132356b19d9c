"""L-MAML, or LLAMA (Grant, Finn, Levine, Darrell and Griffiths, ICLR 2018, arXiv:1801.08930).

    θⱼ₊₁ = θⱼ − α ∇L(θⱼ)                                               MAML's path, read as MAP inference
    minimises  L_query(θₙ) + η/2 log det(F + τI)                       Laplace's approximation of evidence
    F = Σₛ Jₛᵀ Λₛ Jₛ = UᵀU          Jₛ = ∂ outputs of example s / ∂θ,  Λₛ = diag(p) − ppᵀ, or I for values

A start from which tasks end in narrow valleys explains their data worse than the loss at the bottom says;
log det of the curvature F of the support set at θₙ tells how narrow.

The paper approximates F layer by layer (K-FAC), for which one must see every layer's inputs and slopes. Here
the rows of U, one for every example and class, are derivatives that the engine takes as it does those of
tasks, and

    log det(F + τI) = D log τ + log det(I + UUᵀ/τ)                     a small matrix; D log τ is left out

is exact. Each row costs a pass through the support set, so by default U is replaced by `directions`
orthonormal combinations of its rows, which bound log det from below. These numbers are far smaller than sums
over D factors, so η is larger than the paper's 1e-6.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pathaware.core.episodes import Episodes
from pathaware.core.errors import UsageError
from pathaware.core.learner import FewShotLearner, MetaLearner, require_path
from pathaware.core.meta_gradient import MetaGradient
from pathaware.core.settings import at_least
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method


class Laplace(MetaGradient):
    """The exact meta-gradient of the query loss and of the volume of the posterior around the path's end.

    - `curvature_weight`: η, 0 for MAML; `prior_precision`: τ.
    - `directions`: how many rows are left of U, by default about as costly as MAML's steps; `None` for all.
    """

    def __init__(
        self, *, curvature_weight: float = 1e-3, prior_precision: float = 1.0, directions: int | None = 5
    ) -> None:
        at_least(0, curvature_weight=curvature_weight)
        if prior_precision <= 0:
            raise UsageError(f"prior_precision: {prior_precision} is not allowed; above 0")
        if directions is not None:
            at_least(1, directions=directions)
        self.weight, self.precision, self.directions = curvature_weight, prior_precision, directions

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        learner = require_path(learner)
        x, y = episodes.support_x, episodes.support_y
        end = learner.end(learner.path(x, y, order="second", query_x=episodes.query_x))
        losses = learner.query_losses(end, episodes.query_x, episodes.query_y)
        volumes = log_determinants(curvature_roots(learner, end, x, y, self.directions), self.precision)
        objective = losses + self.weight / 2 * volumes
        (objective.sum() * weight).backward()
        return losses.detach()


def curvature_roots(
    learner: MetaLearner, point: Tensor, x: Tensor, y: Tensor, directions: int | None
) -> Tensor:
    """U `[T, K, D]` at a point `[T, D]`, with UᵀU = F where K is all there are; differentiable.

    Every task stands K times in the batch, once for each combination of its outputs that is differentiated,
    so the network runs as it always does, whatever it is made of.
    """
    outputs = learner.predict(point, x)
    tasks, examples, values = outputs.flatten(2).shape
    mixing = orthonormal_rows(directions, examples * values, outputs).view(-1, examples, values)
    combined = torch.einsum("ksc,tsoc->tkso", mixing, likelihood_roots(outputs.flatten(2), y))
    copies = len(mixing)
    points = point.repeat_interleave(copies, dim=0)
    answers = learner.predict(points, x.repeat_interleave(copies, dim=0))
    (rows,) = torch.autograd.grad(answers, points, combined.reshape(answers.shape), create_graph=True)
    return rows.view(tasks, copies, -1)


def likelihood_roots(outputs: Tensor, y: Tensor) -> Tensor:
    """R `[T, S, C, C]` with RRᵀ = Λ, the curvature of −log p(y | outputs `[T, S, C]`) of each example."""
    if y.is_floating_point():
        return torch.diag_embed(torch.ones_like(outputs))
    root = (outputs.log_softmax(-1) / 2).exp()  # of p; the square root itself has no derivative at 0
    return torch.diag_embed(root) - root.square().unsqueeze(-1) * root.unsqueeze(-2)


def orthonormal_rows(count: int | None, size: int, like: Tensor) -> Tensor:
    """`[count, size]`: rows of the discrete cosine transform, of frequencies evenly spread; at most `size`.

    They need not be drawn anew: tasks are.
    """
    count = size if count is None else min(count, size)
    frequencies = torch.arange(count, device=like.device).mul(size).div(count, rounding_mode="floor")
    places = torch.arange(size, device=like.device, dtype=like.dtype) + 0.5
    waves = torch.cos(math.pi / size * frequencies.unsqueeze(1) * places)
    return F.normalize(waves)


def log_determinants(rows: Tensor, precision: float) -> Tensor:
    """log det(I + UUᵀ/τ) `[T]` of `rows` U `[T, K, D]`.

    In double precision: the rows of an example's classes depend on each other, so that I alone keeps the
    matrix positive, and single precision loses I beside long rows.
    """
    exact = rows.double()
    gram = exact @ exact.transpose(1, 2) / precision
    gram = gram + torch.diag_embed(torch.ones_like(gram[..., 0]))
    factor: Tensor = torch.linalg.cholesky_ex(gram)[0]  # the plain one stops a GPU to look for errors
    return 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1).to(rows.dtype)


METHOD = Method(
    "l-maml",
    "MAML that also asks how wide the valley is where tasks end",
    "Grant, Finn, Levine, Darrell and Griffiths, ICLR 2018, arXiv:1801.08930",
    2018,
    GradientDescent,
    meta_gradient=Laplace,
)
