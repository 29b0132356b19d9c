"""Identities that relate the rules to each other and to the paper."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from pathaware import GradientDescent, MetaLearner, MetaSGD, Pamela, Rule, UsageError
from tests.conftest import distance, meta_gradient, regression_episodes, scatter, small_problem


def test_pamela_without_skips_and_with_constant_q_is_maml():
    model, loss, episodes = small_problem("conv")
    pamela = MetaLearner(model, Pamela(model, 4, rate=0.1, q_start=0.5, skip=None), loss)
    maml = MetaLearner(model, GradientDescent(model, 4, rate=0.05), loss)
    theta = len(maml.rule.layout)
    assert distance(meta_gradient(pamela, episodes)[:theta], meta_gradient(maml, episodes)) < 1e-12


def test_pamela_with_one_step_is_meta_sgd():
    model, loss, episodes = small_problem("mlp")
    pamela = scatter(MetaLearner(model, Pamela(model, 1, rate=1.0, q_start=0.01, skip=None), loss))
    meta_sgd = MetaLearner(model, MetaSGD(model, 1), loss)
    with torch.no_grad():
        meta_sgd.rule.q.copy_(pamela.rule.q[0])
    assert distance(meta_gradient(pamela, episodes), meta_gradient(meta_sgd, episodes)) < 1e-12


def test_q_learned_directly_takes_the_steps_of_a_rate_that_multiplies_q():
    """Both begin as MAML with a step size of 0.01; only how fast Adam moves Q differs."""
    model, loss, episodes = small_problem("mlp")
    paper = MetaLearner(model, Pamela(model, 3), loss)
    direct = MetaLearner(model, Pamela(model, 3, rate=1.0, q_start=0.01), loss)
    assert (
        distance(*(each.path(episodes.support_x, episodes.support_y).end for each in (paper, direct))) < 1e-14
    )
    of_q = [torch.autograd.grad(each.meta_loss(episodes), each.rule.q)[0] for each in (paper, direct)]
    assert distance(of_q[0], 0.01 * of_q[1]) < 1e-12


def test_a_rate_without_a_start_of_q_warns_once_what_changed():
    model, *_ = small_problem("mlp")
    with pytest.warns(FutureWarning, match="set rate = 1 and q_start = 0.1"):
        Pamela(model, rate=0.1)
    for settings in ({}, {"rate": 0.1, "q_start": 1.0}, {"rate": 1.0, "q_start": 0.1}):
        Pamela(model, **settings)  # warnings are errors here


@pytest.mark.parametrize("skip", [1, 2, 3])
def test_the_closed_expansion_of_section_3_2_holds(skip):
    """θⱼ₊₁ = θⱼ₋w − (1 − P) Σₛ Qⱼ₋ₛ ∇L(θⱼ₋ₛ), s = 0 … w, for the first skip of a path."""
    model, loss, episodes = small_problem("mlp")
    learner = scatter(MetaLearner(model, Pamela(model, 5, skip=skip), loss))
    rule, path = learner.rule, learner.path(episodes.support_x, episodes.support_y)
    j = skip
    total = torch.zeros_like(path.end)
    for s in range(j - skip, j + 1):
        _, gradient = learner.gradient_at(path.points[s], episodes.support_x, episodes.support_y)
        total += rule.rate * rule.q_groups(rule.q[s]) * gradient
    expected = path.points[j - skip] - (1 - rule.p_groups(rule.p[0])) * total
    assert distance(path.points[j + 1], expected.detach()) < 1e-14


@pytest.mark.parametrize("skip", [1, 2, 3, 4])
def test_every_step_of_a_path_follows_the_papers_update(skip):
    """Algorithm 1 written out for each j, later skips included: they start at θⱼ₋w, not at θ₀."""
    model, loss, episodes = small_problem("mlp")
    learner = scatter(MetaLearner(model, Pamela(model, 5, skip=skip), loss, guard=False))
    rule, points = learner.rule, learner.path(episodes.support_x, episodes.support_y).points
    used = 0
    for j in range(5):
        _, gradient = learner.gradient_at(points[j], episodes.support_x, episodes.support_y)
        expected = points[j] - rule.rate * rule.q_groups(rule.q[j]) * gradient
        if j % skip == 0 and j >= skip:
            p = rule.p_groups(rule.p[used])
            expected = (1 - p) * expected + p * points[j - skip]
            used += 1
        assert distance(points[j + 1], expected) < 1e-14
    assert used == len(rule.p)


@pytest.mark.parametrize(
    ("steps", "skip", "skips"),
    [(5, 1, [1, 2, 3, 4]), (5, 2, [2, 4]), (5, 3, [3]), (5, 4, [4]), (5, 5, []), (5, None, [])],
)
def test_skips_fall_on_multiples_of_the_interval(steps, skip, skips):
    model, *_ = small_problem("mlp")
    rule = Pamela(model, steps, skip=skip)
    assert rule.skips == skips
    assert rule.p.shape == (len(skips), 3)


def test_a_skip_longer_than_the_path_is_refused():
    model, *_ = small_problem("mlp")
    with pytest.raises(UsageError, match="skip: 6 is not allowed; must be 1 to 5"):
        Pamela(model, 5, skip=6)


def test_an_unknown_granularity_is_refused_with_the_known_ones():
    model, *_ = small_problem("mlp")
    with pytest.raises(UsageError, match=r"'kernel' must be one of .*filter"):
        Pamela(model, q_granularity="kernel")


def test_more_steps_than_trained_need_extend_and_repeat_the_last_q():
    model, loss, _ = small_problem("mlp")
    episodes = regression_episodes()
    learner = scatter(MetaLearner(model, Pamela(model, 2, skip=1), loss))
    with pytest.raises(UsageError, match=r"^extend: is needed for 3 steps, more than the 2 "):
        learner.path(episodes.support_x, episodes.support_y, steps=3)
    path = learner.path(episodes.support_x, episodes.support_y, steps=3, extend=True)
    _, gradient = learner.gradient_at(path.points[2], episodes.support_x, episodes.support_y)
    expected = path.points[2] - learner.rule.rate * learner.rule.q[-1] * gradient
    assert distance(path.points[3], expected.detach()) < 1e-14


class Wrong(Rule):
    """Returns something else than points of all tasks, from one of its methods."""

    def __init__(self, network: nn.Module, method: str, found: Callable[[Tensor], object]) -> None:
        super().__init__(network, 2)
        self.method, self.found = method, found

    def begin(self, initial, context):
        return self.found(initial) if self.method == "begin" else (initial, None)

    def advance(self, j, points, gradient, losses, memory):
        if self.method == "advance":
            return self.found(points[-1])
        return super().advance(j, points, gradient, losses, memory)

    def step(self, j, points, gradient):
        return self.found(points[-1] - 0.01 * gradient)


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize(
    ("method", "found", "message"),
    [
        ("step", lambda point: None, r"rule: a step must return points of shape \[2, 61\], got NoneType"),
        ("step", lambda point: point.mean(0), r"rule: a step must .* got shape \[61\]"),
        ("step", lambda point: point[:1], r"rule: a step must .* got shape \[1, 61\]"),
        ("advance", lambda point: point, "rule: advance must return the points and the memory, got Tensor"),
        ("advance", lambda point: (point[0], None), r"rule: a step must .* got shape \[61\]"),
        ("begin", lambda point: point, "rule: begin must return the points and the memory, got Tensor"),
        ("begin", lambda point: (point[:, 1:], None), r"rule: begin must .* \[2, 61\], got shape \[2, 60\]"),
    ],
)
def test_a_rule_that_does_not_return_points_of_all_tasks_is_refused(method, found, message, guard):
    """Two tasks: the rows of a tensor would be taken for points and memory."""
    model, loss, episodes = small_problem("mlp")
    learner = MetaLearner(model, Wrong(model, method, found), loss, guard=guard)
    with pytest.raises(UsageError, match=message):
        learner.meta_loss(episodes[:2])
