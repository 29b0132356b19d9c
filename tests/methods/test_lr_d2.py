"""LR-D2: logistic regression as the last layer."""

from __future__ import annotations

import math

import pytest
import torch

from tests.methods.checks import learner_of


def some_tasks(learner, examples=9):
    features = torch.randn(2, examples, learner.head.features)
    return features, torch.stack([torch.randperm(examples) % 3 for _ in range(2)])


@pytest.mark.parametrize("examples", [9, 40])
def test_it_converges_to_logistic_regression_of_scikit_learn_for_each_class(examples):
    linear_model = pytest.importorskip("sklearn.linear_model")
    learner, _, _ = learner_of("lr-d2", steps=12, penalty=0.3, scale=1.0)
    features, targets = some_tasks(learner, examples)
    (weights,) = learner.head.fit(features, targets)
    x = features / math.sqrt(learner.head.features)
    for task in range(2):
        for k in range(3):
            theirs = linear_model.LogisticRegression(C=1 / 0.3, fit_intercept=False, tol=1e-10, max_iter=1000)
            theirs.fit(x[task].numpy(), (targets[task] == k).numpy())
            assert torch.allclose(weights[task, :, k], torch.from_numpy(theirs.coef_[0]), atol=1e-6)


def test_each_step_is_the_papers_reweighted_least_squares():
    """The paper's form, which divides by the weights, for one task and class at a time."""
    learner, _, _ = learner_of("lr-d2", steps=3, penalty=0.3, scale=2.0)
    features, targets = some_tasks(learner)
    (weights,) = learner.head.fit(features, targets)
    for task in range(2):
        x = features[task] / math.sqrt(learner.head.features)
        for k in range(3):
            w = torch.zeros(x.shape[1])
            for _ in range(3):
                mu = torch.sigmoid(x @ w)
                s = mu * (1 - mu)
                z = x @ w + ((targets[task] == k).double() - mu) / s
                w = x.T @ torch.linalg.inv(x @ x.T + 0.3 * torch.diag(1 / s)) @ z
            assert torch.allclose(weights[task, :, k], 2 * w, atol=1e-9)


def test_a_fit_that_is_sure_of_itself_stays_finite_in_float32():
    """A weight of μ(1 − μ) is zero there, and the paper's form would divide by it."""
    torch.set_default_dtype(torch.float32)
    learner, _, _ = learner_of("lr-d2", steps=25, penalty=1e-6)
    features, targets = some_tasks(learner)
    features.requires_grad_()
    (weights,) = learner.head.fit(100 * features, targets)
    (gradient,) = torch.autograd.grad(weights.sum(), features)
    assert weights.isfinite().all()
    assert gradient.isfinite().all()
