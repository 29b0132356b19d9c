"""Heads, and the learner that adapts them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from pathaware.core.batch_norm import TaskStatistics
from pathaware.core.errors import UsageError
from pathaware.core.head import HeadLearner, one_hot
from pathaware.methods.r2d2 import R2D2
from pathaware.models import mlp
from tests.methods.checks import learner_of


def test_classes_become_one_hot_rows_and_values_stay():
    targets, like = torch.randint(0, 3, (2, 5)), torch.zeros(1, dtype=torch.float32)
    rows = one_hot(targets, 3, like)
    assert rows.dtype == torch.float32
    assert torch.equal(rows, F.one_hot(targets, 3).float())
    values = torch.randn(2, 5, 1)
    assert one_hot(values, 1, like) is values


def test_one_hot_can_be_traced_with_other_labels():
    """Compiled iterations are traced once and then run with other labels."""
    traced = make_fx(lambda targets: one_hot(targets, 3, torch.zeros(1)))(torch.zeros(2, 5, dtype=torch.long))
    targets = torch.randint(0, 3, (2, 5))
    assert torch.equal(traced(targets), F.one_hot(targets, 3).to(torch.get_default_dtype()))


def test_features_are_those_of_each_task_alone():
    learner, _, episodes = learner_of("prototypical")
    together = learner.features(episodes.support_x)
    for task, x in enumerate(episodes.support_x):
        assert torch.allclose(together[task], learner.model(x), atol=1e-12)


def test_statistics_per_task_are_those_of_plain_batch_norm():
    data, weight, bias = torch.randn(6, 4, 5, 5), torch.randn(4), torch.randn(4)
    expected = torch.cat([F.batch_norm(d, None, None, weight, bias, training=True) for d in data.split(3)])
    for count in (None, 3):
        with TaskStatistics(2, count):
            found = F.batch_norm(data, None, None, weight, bias, training=True)
        assert torch.allclose(found, expected, atol=1e-12)


def test_the_number_of_steps_cannot_be_chosen():
    learner, _, episodes = learner_of("prototypical")
    with pytest.raises(UsageError, match="no inner steps"):
        learner.predictions_per_step(*episodes.tensors()[:3], steps=3)


def test_a_support_set_that_cannot_be_used_is_refused_for_predictions_too():
    learner, _, episodes = learner_of("prototypical")
    x, y, query_x, _ = episodes.tensors()
    with pytest.raises(UsageError, match="support set: inputs and targets must have equal numbers"):
        learner.predictions_per_step(x, y[:, :-1], query_x)
    with pytest.raises(UsageError, match="support_y: it must be a tensor, got list"):
        learner.adapt(x[0], y[0].tolist())


def test_a_head_takes_the_dtype_of_its_network():
    """The default dtype of these tests is float64."""
    model = mlp(2, (4,), 3).float()
    learner = HeadLearner(model, R2D2(model), F.cross_entropy)
    assert {parameter.dtype for parameter in learner.head.parameters()} == {torch.float32}
    adapted = learner.adapt(torch.randn(6, 2).float(), torch.arange(6) % 3)
    assert adapted(torch.randn(5, 2).float()).dtype == torch.float32


def test_parts_of_the_wrong_kind_are_refused():
    model = mlp(2, (4,), 3)
    with pytest.raises(UsageError, match="head: it must be an instance of Head, got the class R2D2"):
        HeadLearner(model, R2D2, F.cross_entropy)
    with pytest.raises(UsageError, match="loss: CrossEntropyLoss must be a function or an instance"):
        HeadLearner(model, R2D2(model), nn.CrossEntropyLoss)
    with pytest.raises(UsageError, match=r"model: 2\.weight has no shape yet; run the model once first"):
        R2D2(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.LazyLinear(3)))


class OutputFirst(nn.Module):
    """Registers its output layer before the others."""

    def __init__(self) -> None:
        super().__init__()
        self.output, self.body = nn.Linear(8, 3), nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.output(torch.relu(self.body(x)))


def test_a_network_that_does_not_end_in_its_last_linear_layer_is_refused():
    """Before, the outputs of the output layer were taken for features."""
    model = OutputFirst()
    learner = HeadLearner(model, R2D2(model), F.cross_entropy)
    x, y = torch.randn(2, 6, 4), torch.arange(6).expand(2, 6) % 3
    with pytest.raises(UsageError, match=r"model: it must end in body.1, .* 3 features, not 8"):
        learner.fit(x, y)
