"""Per-layer helpers, compared with plain loops over tasks and tensors."""

from __future__ import annotations

import pytest
import torch

from pathaware import Layout
from pathaware.methods.layerwise import layer_means, over_layers
from tests.conftest import small_problem
from tests.methods.checks import learner_of


def test_means_are_those_of_a_loop_over_tasks_and_tensors():
    layout = Layout.of(small_problem("conv")[0])
    values = torch.randn(3, len(layout))
    looped = [[layout.views(row)[entry.name].mean() for entry in layout.entries] for row in values]
    assert torch.allclose(layer_means(layout, values), torch.tensor(looped))


def test_every_parameter_gets_the_number_of_its_own_tensor():
    layout = Layout.of(small_problem("conv")[0])
    numbers = torch.randn(3, len(layout.entries))
    views = layout.views(over_layers(layout, numbers))
    for i, entry in enumerate(layout.entries):
        for task in range(3):
            assert (views[entry.name][task] == numbers[task, i]).all()


@pytest.mark.parametrize("name", ["l2f", "alfa", "metal"])
def test_norm_layers_adapt_only_where_that_is_asked_for(name):
    """As in the authors' programs, whose `enable_inner_loop_optimizable_bn_params` is false."""
    learner, outer, episodes = learner_of(name)
    every = {n for n, _ in learner.model.named_parameters()}
    norms = {n for n in every if "norm" in n}
    assert set(learner.adapted_names) == every - norms
    outer.backward(learner, episodes, 1.0)
    assert all(dict(learner.model.named_parameters())[n].grad.any() for n in norms), "they are still learned"
    assert set(learner_of(name, adapt_norms=True)[0].adapted_names) == every
