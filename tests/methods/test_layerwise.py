"""Per-layer helpers, compared with plain loops over tasks and tensors."""

from __future__ import annotations

import torch

from pathaware import Layout
from pathaware.methods.layerwise import layer_means, over_layers
from tests.conftest import small_problem


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
