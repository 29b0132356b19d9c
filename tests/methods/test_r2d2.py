"""R2-D2: ridge regression as the last layer."""

from __future__ import annotations

import math

import pytest
import torch

from pathaware.core.head import inverse, solve
from tests.methods.checks import learner_of


@pytest.mark.parametrize("examples", [6, 30])
def test_the_dual_solution_is_that_of_the_normal_equations(examples):
    """Both with fewer and with more examples than features."""
    learner, _, _ = learner_of("r2d2", penalty=0.3)
    count = learner.head.features
    features, values = torch.randn(2, examples, count), torch.randn(2, examples, 3)
    (weights,) = learner.head.fit(features, values)
    x = features / math.sqrt(count)
    primal = torch.linalg.solve(x.mT @ x + 0.3 * torch.eye(count), x.mT @ values)
    assert torch.allclose(weights, primal, atol=1e-10)


def test_it_predicts_as_ridge_regression_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    learner, _, _ = learner_of("r2d2", penalty=0.3, scale=4.0)
    head = learner.head
    features, queries = torch.randn(2, 6, head.features), torch.randn(2, 5, head.features)
    targets = torch.tensor([[0, 1, 2, 2, 1, 0], [2, 2, 1, 1, 0, 0]])
    predictions = head.predict(head.fit(features, targets), queries).detach()
    for task in range(2):
        # Features that are not divided by √F want a penalty F times as large.
        ridge = linear_model.Ridge(alpha=0.3 * head.features, fit_intercept=False)
        ridge.fit(features[task].numpy(), torch.eye(3)[targets[task]].numpy())
        assert torch.allclose(predictions[task] / 4, torch.from_numpy(ridge.predict(queries[task].numpy())))


def test_values_are_regressed_on_as_they_are_and_a_small_penalty_fits_them():
    learner, _, _ = learner_of("r2d2", "mlp", penalty=1e-8)
    features, values = torch.randn(1, 4, learner.head.features), torch.randn(1, 4, 1)
    assert torch.allclose(
        learner.head.predict(learner.head.fit(features, values), features), values, atol=1e-5
    )


@pytest.mark.parametrize("size", [1, 5, 25])
def test_elimination_solves_as_lapack_does_with_the_same_derivatives(size):
    x = torch.randn(3, 2, size, size)
    a, b = (x @ x.mT + 0.1 * torch.eye(size)).requires_grad_(), torch.randn(3, 2, size, 2, requires_grad=True)
    weights = torch.randn(3, 2, size, 2)
    found = []
    for way in (solve, torch.linalg.solve):
        answer = way(a, b)
        found.append((answer, *torch.autograd.grad((answer * weights).sum(), (a, b))))
    for ours, lapack in zip(*found, strict=True):
        assert torch.allclose(ours, lapack, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 1e6])
def test_elimination_is_as_exact_in_float32_whatever_the_magnitude(magnitude):
    x = torch.randn(8, 20, 5)
    a = magnitude * (x @ x.mT + torch.eye(20))
    exact = torch.linalg.inv(a)
    assert (inverse(a.float()) - exact).norm() < 1e-4 * exact.norm()


def test_elimination_survives_examples_that_are_all_alike():
    alike = torch.ones(1, 25, 25, dtype=torch.float32)
    assert inverse(alike).isfinite().all()
