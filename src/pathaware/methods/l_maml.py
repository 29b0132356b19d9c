"""L-MAML, or LLAMA (Grant, Finn, Levine, Darrell and Griffiths, ICLR 2018, arXiv:1801.08930).

    θⱼ₊₁ = θⱼ − α ∇L(θⱼ)                                               MAML's path, read as MAP inference
    minimise L_query(θₙ) + η/2 log det(F + τI)                         Laplace approximation of the evidence
    F = Σₛ Jₛᵀ Λₛ Jₛ = UᵀU          Jₛ = ∂ outputs of example s / ∂θ,  Λₛ = diag(p) − ppᵀ, or I in regression

A narrow minimum explains a task's data worse than its loss says. So MAML's loss is penalised by log det of
the curvature F of the support loss at θₙ, which measures how narrow the minimum is.

Departures from the authors' code:

- The paper approximates F layer by layer (K-FAC), which needs every layer's inputs and gradients. Here U has
  one row per example and class, which the engine differentiates like tasks of a batch, and

      log det(F + τI) = D log τ + log det(I + UUᵀ/τ)                   a small matrix; D log τ is left out

  is exact. Each row costs a pass through the support set, so by default U is replaced by `directions`
  orthonormal combinations of its rows, which bound log det from below.
- We found no code by the authors; the paper is followed.
- These values are far smaller than sums over D factors, so η is larger than the paper's 1e-6.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from pathaware.core.episodes import Episodes
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.learner import MetaLearner, require_path
from pathaware.core.meta_gradient import MetaGradient
from pathaware.core.settings import at_least, positive
from pathaware.methods.maml import GradientDescent
from pathaware.methods.method import Method


class Laplace(MetaGradient):
    """The exact meta-gradient of the query loss plus the penalty on the curvature at the path's end.

    - `curvature_weight`: η, 0 for MAML; `prior_precision`: τ.
    - `directions`: the number of rows of U, by default about as costly as MAML's steps; `None` for all.
    """

    def __init__(
        self, *, curvature_weight: float = 1e-3, prior_precision: float = 1.0, directions: int | None = 5
    ) -> None:
        at_least(0, curvature_weight=curvature_weight)
        positive(prior_precision=prior_precision)
        if directions is not None:
            at_least(1, directions=directions)
        self.weight, self.precision, self.directions = curvature_weight, prior_precision, directions

    def backward(self, learner: FewShotLearner, episodes: Episodes, weight: float) -> Tensor:
        learner = require_path(learner)
        x, y = episodes.support_x, episodes.support_y
        end = learner.end(learner.path(x, y, order="second", query_x=episodes.query_x))
        losses = learner.execution.query_losses(end, episodes.query_x, episodes.query_y)
        penalty = log_determinants(curvature_roots(learner, end, x, y, self.directions), self.precision)
        objective = losses + self.weight / 2 * penalty
        (objective.sum() * weight).backward()
        return losses.detach()


def curvature_roots(
    learner: MetaLearner, point: Tensor, x: Tensor, y: Tensor, directions: int | None
) -> Tensor:
    """U `[T, K, D]` at a point `[T, D]`, with UᵀU = F if `directions` is `None`; differentiable.

    Every task is repeated K times in the batch, once per combination of its outputs that is differentiated,
    so this works for any network that the engine can run.
    """
    outputs = learner.outputs_at(point, x)
    tasks, examples, values = outputs.flatten(2).shape
    mixing = orthonormal_rows(directions, examples * values, outputs).view(-1, examples, values)
    combined = torch.einsum("ksc,tsoc->tkso", mixing, likelihood_roots(outputs.flatten(2), y))
    copies = len(mixing)
    points = point.repeat_interleave(copies, dim=0)
    repeated = learner.outputs_at(points, x.repeat_interleave(copies, dim=0))
    (rows,) = torch.autograd.grad(repeated, points, combined.reshape(repeated.shape), create_graph=True)
    return rows.view(tasks, copies, -1)


def likelihood_roots(outputs: Tensor, y: Tensor) -> Tensor:
    """R `[T, S, C, C]` with RRᵀ = Λ, the Hessian of −log p(y | outputs `[T, S, C]`) per example."""
    if y.is_floating_point():
        return torch.diag_embed(torch.ones_like(outputs))
    root = (outputs.log_softmax(-1) / 2).exp()  # √p by its logarithm: √ has no derivative at 0
    return torch.diag_embed(root) - root.square().unsqueeze(-1) * root.unsqueeze(-2)


def orthonormal_rows(count: int | None, size: int, like: Tensor) -> Tensor:
    """`[count, size]`: rows of the discrete cosine transform, frequencies evenly spaced; at most `size` rows.

    They are the same in every iteration; the tasks differ.
    """
    count = size if count is None else min(count, size)
    frequencies = torch.arange(count, device=like.device).mul(size).div(count, rounding_mode="floor")
    positions = torch.arange(size, device=like.device, dtype=like.dtype) + 0.5
    waves = torch.cos(math.pi / size * frequencies.unsqueeze(1) * positions)
    return F.normalize(waves)


def log_determinants(rows: Tensor, precision: float) -> Tensor:
    """log det(I + UUᵀ/τ) `[T]` of `rows` U `[T, K, D]`.

    In double precision: the rows of an example's classes are linearly dependent, so only I makes the matrix
    positive definite, and in single precision I is lost beside long rows.
    """
    exact = rows.double()
    gram = exact @ exact.transpose(1, 2) / precision
    gram = gram + torch.diag_embed(torch.ones_like(gram[..., 0]))
    factor: Tensor = torch.linalg.cholesky_ex(gram)[0]  # without a sync with the GPU to check for errors
    return 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1).to(rows.dtype)


METHOD = Method(
    "l-maml",
    "MAML with a penalty on the curvature where tasks end",
    "Grant, Finn, Levine, Darrell and Griffiths, ICLR 2018, arXiv:1801.08930",
    2018,
    GradientDescent,
    meta_gradient=Laplace,
)
