"""L2F: MAML from an attenuated initialisation."""

from __future__ import annotations

import torch

from pathaware import MetaLearner
from pathaware.methods.l2f import Forgetting
from tests.conftest import distance, meta_gradient
from tests.methods.checks import learner_of, scattered


def telling(learner, scale=1.0):
    """Perturb the attenuator so that its output depends on the task."""
    with torch.no_grad():
        learner.rule.attenuator[0].weight.mul_(10)
    return scattered(learner, scale)


def test_the_derivative_passes_through_the_gradient_that_is_looked_at():
    learner, _, episodes = learner_of("l2f", rate=0.1, steps=1, guard=False)
    telling(learner)
    whole = meta_gradient(learner, episodes)

    class Blind(Forgetting):
        def attenuation(self, gradient):
            return super().attenuation(gradient.detach())

    blind = Blind(learner.rule.layout, 1, rate=0.1)
    blind.load_state_dict(learner.rule.state_dict())
    cut = meta_gradient(MetaLearner(learner.model, blind, learner.loss, guard=False), episodes)
    assert distance(cut, whole) > 1e-3


def test_a_task_begins_at_its_own_share_of_every_tensor():
    learner, _, episodes = learner_of("l2f", rate=0.1)
    telling(learner)
    x, y = episodes.support_x, episodes.support_y
    path = learner.path(x, y, steps=0)
    shares = []
    for task in range(len(x)):
        own = learner.rule.layout.views(learner.rule.layout.flatten(learner.model))
        parameters = [dict(learner.model.named_parameters())[name] for name in own]
        gradients = torch.autograd.grad(learner.loss(learner.model(x[task]), y[task]), parameters)
        logits = learner.rule.attenuator(torch.stack([gradient.mean() for gradient in gradients]))
        shares.append(1 / (1 + torch.exp(-logits)))
        for i, (name, value) in enumerate(own.items()):
            assert torch.allclose(path.parameters(0)[name][task], shares[-1][i] * value)
    assert all(share.min() > 0 and share.max() < 1 for share in shares)
    assert not torch.allclose(shares[0], shares[1])
