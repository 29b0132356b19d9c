"""ALFA: generated step sizes and weight decays."""

from __future__ import annotations

import torch

from tests.methods.checks import learner_of, scattered


def test_decay_is_descent_of_a_penalised_loss():
    """θ − α (∇L + λ θ), which is what the paper starts from."""
    learner, _, episodes = learner_of("alfa", rate=0.1, steps=1, decay=0.3)
    x, y = episodes.support_x, episodes.support_y
    path = learner.path(x, y)
    _, gradient = learner.gradient_at(path.points[0], x, y)
    assert torch.allclose(path.end, path.points[0] - 0.1 * (gradient + 0.3 * path.points[0]))


def test_one_step_equals_a_loop_over_tasks_and_tensors():
    learner, _, episodes = learner_of("alfa", rate=0.1, steps=2)
    rule = scattered(learner, 0.3).rule
    point = torch.randn(2, len(rule.layout))
    _, gradient = learner.gradient_at(point, episodes.support_x, episodes.support_y)
    found = rule.layout.views(rule.step(1, [point], gradient))
    rates = []
    for task in range(2):
        here, gradients = rule.layout.views(point[task]), rule.layout.views(gradient[task])
        state = [here[name].mean() for name in here] + [gradients[name].mean() for name in here]
        predictions = rule.generator(torch.stack(state))
        for i, name in enumerate(here):
            alpha = rule.rates[1, i] * predictions[i]
            beta = 1 - rule.decays[1, i] * predictions[len(here) + i]
            assert torch.allclose(found[name][task], beta * here[name] - alpha * gradients[name])
            rates.append(alpha)
    assert not torch.allclose(*torch.stack(rates).view(2, -1))


def test_every_step_has_its_own_coefficients_and_later_ones_use_the_last():
    learner, _, _ = learner_of("alfa", rate=0.1, steps=2)
    rule = scattered(learner, 0.05).rule
    point, gradient = torch.randn(2, 2, len(rule.layout))
    second, third = (rule.step(j, [point], gradient) for j in (1, 2))
    assert torch.equal(second, third)
    assert not torch.allclose(rule.step(0, [point], gradient), second)
