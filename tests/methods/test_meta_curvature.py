"""Meta-Curvature: gradients multiplied with learned matrices along each axis."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pathaware.methods.meta_curvature import MetaCurvature

MATRICES = ["full", "diagonal"]


def dense(factor):
    return factor if factor.ndim == 2 else torch.diag(factor)


@pytest.mark.parametrize("matrices", MATRICES)
def test_a_step_multiplies_the_gradient_with_a_kronecker_product(matrices):
    model = nn.Sequential(nn.Conv2d(2, 3, (2, 3)), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(4, 5))
    rule = MetaCurvature(model, 1, rate=0.1, matrices=matrices).to(torch.float64)
    for parameter in rule.parameters():
        nn.init.normal_(parameter)
    point, gradient = torch.randn(2, 4, len(rule.layout))
    moved = rule.step(0, [point], gradient)
    start = 0
    for entry, curvature in zip(rule.layout.entries, rule.curvatures, strict=True):
        whole = torch.ones(1, 1)
        for factor in curvature.factors:
            whole = torch.kron(whole, dense(factor))
        here = slice(start, start := start + entry.numel)
        expected = point[:, here] - 0.1 * gradient[:, here] @ whole.T
        assert torch.allclose(moved[:, here], expected, atol=1e-12), entry.name
    assert start == moved.shape[1]


def test_its_matrices_are_those_of_output_input_and_tap():
    model = nn.Sequential(nn.Conv2d(2, 3, (2, 5)), nn.Flatten(), nn.Linear(4, 6))
    shapes = [[tuple(f.shape) for f in c.factors] for c in MetaCurvature(model).curvatures]
    assert shapes == [[(3, 3), (2, 2), (10, 10)], [(3,)], [(6, 6), (4, 4)], [(6,)]]
