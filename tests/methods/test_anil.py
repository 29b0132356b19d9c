"""ANIL: MAML of the last layer."""

from __future__ import annotations

import pytest
import torch

from pathaware import GradientDescent, Layout, MetaLearner
from tests.conftest import distance, meta_gradient
from tests.methods.checks import error_of_meta_gradient, learner_of


@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_its_meta_gradient_equals_finite_differences(kind):
    assert error_of_meta_gradient(*learner_of("anil", kind, rate=0.1)) < 1e-6


def test_the_body_is_the_same_for_all_tasks_and_the_head_is_not():
    learner, _, episodes = learner_of("anil", rate=0.1)
    path = learner.path(episodes.support_x, episodes.support_y)
    assert {name.split(".")[0] for name in path.parameters(-1)} == {"head"}
    assert not torch.equal(path.end[0], path.end[1])


def test_it_equals_maml_whose_other_rates_are_zero():
    """A body that is adapted with gradients of zero."""
    learner, _, episodes = learner_of("anil", rate=0.1, steps=2)

    class HeadOnly(GradientDescent):
        def step(self, j, points, gradient):
            kept = torch.cat(
                [torch.full((e.numel,), float(e.name.startswith("head"))) for e in self.layout.entries]
            )
            return points[-1] - self.rate * kept * gradient

    whole = MetaLearner(learner.model, HeadOnly(Layout.of(learner.model), 2, rate=0.1), learner.loss)
    assert distance(meta_gradient(learner, episodes), meta_gradient(whole, episodes)) < 1e-10
