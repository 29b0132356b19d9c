"""Per-layer helpers, compared with plain loops over tasks and tensors."""

from __future__ import annotations

import pytest
import torch

from pathaware import Layout
from pathaware.methods.layerwise import Layers, standardised
from tests.conftest import small_problem
from tests.methods.checks import learner_of


def test_means_are_those_of_a_loop_over_tasks_and_tensors():
    layout = Layout.of(small_problem("conv")[0])
    values = torch.randn(3, len(layout))
    looped = [[layout.views(row)[entry.name].mean() for entry in layout.entries] for row in values]
    assert torch.allclose(Layers(layout.sizes).means(values), torch.tensor(looped))


def test_every_parameter_gets_the_number_of_its_own_tensor():
    layout = Layout.of(small_problem("conv")[0])
    numbers = torch.randn(3, len(layout.entries))
    views = layout.views(Layers(layout.sizes).spread(numbers))
    for i, entry in enumerate(layout.entries):
        for task in range(3):
            assert (views[entry.name][task] == numbers[task, i]).all()


@pytest.mark.parametrize("name", ["l2f", "alfa", "metal"])
def test_norm_layers_adapt_only_where_that_is_asked_for(name):
    """As in the authors' code, whose `enable_inner_loop_optimizable_bn_params` is false."""
    learner, outer, episodes = learner_of(name)
    every = {n for n, _ in learner.model.named_parameters()}
    norms = {n for n in every if "norm" in n}
    assert {entry.name for entry in learner.rule.layout.entries} == every - norms
    outer.backward(learner, episodes, 1.0)
    assert all(dict(learner.model.named_parameters())[n].grad.any() for n in norms), "they are still learned"
    assert {entry.name for entry in learner_of(name, adapt_norms=True)[0].rule.layout.entries} == every


def test_means_and_their_counterpart_can_be_differentiated_twice():
    layers = Layers([3, 1, 4])
    values, numbers = torch.randn(2, 8, requires_grad=True), torch.randn(2, 3, requires_grad=True)

    def function(values: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        return layers.means(values.square() * layers.spread(numbers.square()))

    assert torch.autograd.gradcheck(function, (values, numbers))
    assert torch.autograd.gradgradcheck(function, (values, numbers))


@pytest.mark.parametrize("shape", [(3, 5), (2, 4, 3)])
def test_standardised_values_and_their_derivatives_are_those_of_autograd(shape):
    values = torch.randn(shape, requires_grad=True)
    flat = values.flatten(1)
    expected = (flat - flat.mean(1, keepdim=True)) / (flat.var(1, keepdim=True) + 0.3).sqrt()
    assert torch.allclose(standardised(values, 0.3), expected.view(shape))
    assert torch.autograd.gradcheck(lambda x: standardised(x, 0.3), values)
    assert torch.autograd.gradgradcheck(lambda x: standardised(x, 0.3), values)
