"""GAP: gradients scaled along their singular vectors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pathaware.methods import gap
from pathaware.methods.gap import Gap
from tests.conftest import distance
from tests.methods.checks import differences, estimated, learner_of, scattered

MODES = [False, True]


def a_rule(exact):
    """A rule for one wide and one tall weight, with random scales."""
    model = nn.Sequential(nn.Conv2d(2, 3, (2, 3)), nn.Flatten(), nn.Linear(4, 7))
    rule = Gap(model, 1, rate=1.0, exact=exact).to(torch.float64)
    for parameter in rule.parameters():
        nn.init.normal_(parameter)
    return rule


def scales_of(rule, name):
    index = [entry.name for entry in rule.layout.entries].index(name)
    m = rule.preconditioners[index].m
    return ((2 * m).exp() + 1).log() / 2


@pytest.mark.parametrize("network", ["conv", "mlp"])
def test_its_exact_meta_gradient_is_that_with_constant_singular_vectors(network, monkeypatch):
    """Finite differences of a loss whose singular vectors are fixed to those of the unperturbed point."""
    learner, outer, episodes = learner_of("gap", network, rate=0.1, steps=2, exact=True)
    scattered(learner)
    kept, find = [], gap.singular_vectors
    monkeypatch.setattr(gap, "singular_vectors", lambda wide: kept.append(find(wide)) or kept[-1])
    found = estimated(learner, outer, episodes)
    served = 0

    def keep(wide):
        nonlocal served
        served += 1
        return kept[(served - 1) % len(kept)]

    monkeypatch.setattr(gap, "singular_vectors", keep)
    gradients, chosen = differences(learner, lambda: learner.query_loss(episodes))
    assert distance(found[chosen], gradients) < 1e-6
    assert served % len(kept) == 0


def test_after_one_exact_step_the_scales_get_their_full_derivative():
    """The singular vectors of the first gradient do not depend on them."""
    learner, outer, episodes = learner_of("gap", rate=0.1, steps=1, exact=True)
    found = estimated(scattered(learner), outer, episodes)
    gradients, _ = differences(learner.rule, lambda: learner.query_loss(episodes))
    assert distance(found[-len(gradients) :], gradients) < 1e-6


def test_an_exact_step_scales_singular_values():
    rule = a_rule(exact=True)
    gradient = torch.randn(4, len(rule.layout))
    before = rule.layout.views(gradient)
    after = rule.layout.views(-rule.step(0, [torch.zeros_like(gradient)], gradient))
    for name in ("0.weight", "2.weight"):
        scales = scales_of(rule, name)
        for task in range(4):
            u, s, vh = torch.linalg.svd(before[name][task].flatten(1), full_matrices=False)
            assert torch.allclose(after[name][task].flatten(1), (u * (scales * s)) @ vh, atol=1e-12)


def test_an_approximate_step_scales_the_shorter_axis():
    rule = a_rule(exact=False)
    gradient = torch.randn(4, len(rule.layout))
    before = rule.layout.views(gradient)
    after = rule.layout.views(-rule.step(0, [torch.zeros_like(gradient)], gradient))
    wide, tall = scales_of(rule, "0.weight"), scales_of(rule, "2.weight")
    assert torch.allclose(after["0.weight"], wide.view(3, 1, 1, 1) * before["0.weight"])
    assert torch.allclose(after["2.weight"], tall * before["2.weight"])


def test_both_agree_where_rows_are_orthogonal_and_sorted_by_length():
    rows = torch.linalg.qr(torch.randn(5, 5)).Q[:3] * torch.tensor([[3.0], [2.0], [1.0]])
    model = nn.Linear(5, 3, bias=False)
    rules = [Gap(model, 1, exact=exact).to(torch.float64) for exact in MODES]
    scales = torch.randn(3)
    for rule in rules:
        rule.preconditioners[0].m.data = scales
    moved = [rule.step(0, [torch.zeros(1, 15)], rows.reshape(1, 15)) for rule in rules]
    assert torch.allclose(*moved, atol=1e-12)


@pytest.mark.parametrize("exact", MODES)
def test_biases_and_norms_are_descended_plainly(exact):
    learner, _, _ = learner_of("gap", exact=exact, rate=0.1)
    rule = scattered(learner).rule
    gradient = torch.randn(2, len(rule.layout))
    moved = rule.layout.views(rule.step(0, [torch.zeros_like(gradient)], gradient))
    for name, part in rule.layout.views(gradient).items():
        assert torch.allclose(moved[name], -0.1 * part) == (part.ndim == 2), name


@pytest.mark.parametrize("exact", MODES)
def test_every_step_descends_however_the_scales_are_learned(exact):
    """P is positive definite: ⟨G, P G⟩ > 0, also where scales were driven far below zero."""
    rule = a_rule(exact)
    for parameter in rule.parameters():
        nn.init.uniform_(parameter, -8, 2)
    gradient = torch.randn(50, len(rule.layout))
    moved = rule.step(0, [torch.zeros_like(gradient)], gradient)
    for name, part in rule.layout.views(gradient).items():
        assert ((rule.layout.views(moved)[name] * part).flatten(1).sum(1) < 0).all()


def test_a_task_that_is_not_finite_does_not_stop_the_exact_steps_of_the_others():
    rule = a_rule(exact=True)
    point, gradient = torch.zeros(2, len(rule.layout)), torch.randn(2, len(rule.layout))
    expected = rule.step(0, [point], gradient)[0]
    for value in (torch.nan, torch.inf):
        gradient[1] = value
        assert torch.allclose(rule.step(0, [point], gradient)[0], expected)
