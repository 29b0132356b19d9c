"""L-MAML: the Laplace approximation around the end of MAML's path."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, jacrev

from pathaware import MetaLearner
from pathaware.methods.l_maml import (
    curvature_roots,
    likelihood_roots,
    log_determinants,
    orthonormal_rows,
)
from tests.conftest import distance
from tests.methods.checks import differences, estimated, learner_of, scattered


def dense_curvature(learner: MetaLearner, point: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """F of one task: JᵀΛJ with Λ the Hessian of the summed negative log-likelihood in the outputs."""

    def outputs(flat: Tensor) -> Tensor:
        return functional_call(learner.model, learner.rule.layout.views(flat), (x,))

    def unlikelihood(values: Tensor) -> Tensor:
        if y.is_floating_point():
            return (values - y).square().sum() / 2
        return (values.logsumexp(1) - values.gather(1, y[:, None])[:, 0]).sum()

    jacobian = jacrev(outputs)(point).flatten(0, 1)
    curvature = jacrev(jacrev(unlikelihood))(outputs(point)).reshape(len(jacobian), -1)
    return jacobian.T @ curvature @ jacobian


def ends(learner: MetaLearner, episodes) -> Tensor:
    return learner.end(learner.path(episodes.support_x, episodes.support_y))


@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_the_log_determinant_equals_that_of_the_dense_gauss_newton_matrix(kind):
    learner, _, episodes = learner_of("l-maml", kind, rate=0.05)
    x, y = episodes.support_x, episodes.support_y
    points = ends(scattered(learner), episodes).requires_grad_()
    found = log_determinants(curvature_roots(learner, points, x, y, None), 0.3)
    for task in range(len(x)):
        dense = dense_curvature(learner, points[task].detach(), x[task], y[task])
        whole = torch.linalg.slogdet(dense + 0.3 * torch.eye(len(dense)))
        expected = whole.logabsdet - len(dense) * torch.tensor(0.3).log()
        assert torch.allclose(found[task], expected, rtol=1e-9)


def test_fewer_directions_approach_it_from_below():
    learner, _, episodes = learner_of("l-maml", "conv")
    x, y = episodes.support_x, episodes.support_y
    points = ends(scattered(learner), episodes).requires_grad_()
    sizes = (2, 6, None)
    some, more, every = (log_determinants(curvature_roots(learner, points, x, y, k), 1.0) for k in sizes)
    assert (some > 0).all()
    assert (some < more).all()
    assert (more < every).all()


@pytest.mark.parametrize("count", [1, 4, 15, None])
def test_mixed_rows_are_orthonormal(count):
    rows = orthonormal_rows(count, 15, torch.zeros(1))
    assert rows.shape == (count or 15, 15)
    assert torch.allclose(rows @ rows.T, torch.eye(len(rows)), atol=1e-12)


def test_no_more_directions_are_mixed_than_there_are():
    assert orthonormal_rows(9, 4, torch.zeros(1)).shape == (4, 4)


@pytest.mark.parametrize(("kind", "directions"), [("conv", 3), ("conv", None), ("mlp", None)])
def test_its_meta_gradient_equals_finite_differences_of_the_whole_objective(kind, directions):
    """The objective is computed independently; with all directions, from the dense matrix."""
    settings = {"steps": 2, "rate": 0.05, "prior_precision": 0.5, "directions": directions}
    learner, outer, episodes = learner_of("l-maml", kind, curvature_weight=2.0, **settings)
    scattered(learner)
    x, y = episodes.support_x, episodes.support_y

    def objective() -> Tensor:
        points = ends(learner, episodes)
        if directions is None:
            matrices = [dense_curvature(learner, *task) / 0.5 for task in zip(points, x, y, strict=True)]
            volumes = torch.stack([torch.linalg.slogdet(m + torch.eye(len(m))).logabsdet for m in matrices])
        else:
            with torch.enable_grad():
                rows = curvature_roots(learner, points.requires_grad_(), x, y, directions)
            volumes = log_determinants(rows, 0.5)
        return (learner.losses_at(points, episodes.query_x, episodes.query_y) + volumes).mean()

    found = estimated(learner, outer, episodes)
    gradients, chosen = differences(learner, objective, most=24)
    assert distance(found[chosen], gradients) < 1e-6


def test_single_precision_is_enough_for_sharp_curvature():
    """Gram matrices of large derivatives must not lose their positivity to rounding."""
    rows = 300 * torch.randn(3, 25, 1000).float()
    rows[:, 1] = rows[:, 0]
    found = log_determinants(rows, 1.0)
    assert torch.allclose(found.double(), log_determinants(rows.double(), 1.0), rtol=1e-6)


def test_predictions_beyond_doubt_have_derivatives():
    outputs = torch.tensor([[[2000.0, 0.0, -5.0]]], requires_grad=True)
    likelihood_roots(outputs, torch.zeros(1, 1, dtype=torch.long)).sum().backward()
    assert outputs.grad.isfinite().all()
