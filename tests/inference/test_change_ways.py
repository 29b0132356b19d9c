"""A learner trained for one number of classes works for another."""

from __future__ import annotations

import pytest
import torch

from pathaware.core.errors import UsageError
from pathaware.core.learner import MetaLearner
from pathaware.inference.change_ways import MAX_CLASSES, change_ways, repeat_classes
from pathaware.inference.trained_model import arrange
from pathaware.methods import METHODS
from pathaware.training.config import Config
from pathaware.training.meta_training import build
from tests.inference.models import CPU, INK, config, model, pixels

COUNTED = [name for name, method in METHODS.items() if "more classes" not in method.adapter.allows]
"""Methods with parameters tied to class indices, which cannot take more classes than in training."""

REFUSED = [("metal", 2), ("metal", 3), ("metal", 7), ("gap", 2), ("gap", 3)]
"""MeTAL's hidden layers grow with the classes; GAP has scales of features if there are fewer than classes."""


def labels(classes: int) -> torch.Tensor:
    """Labels of two images per class and a third one of the first class."""
    return torch.cat([torch.arange(classes).repeat(2), torch.zeros(1, dtype=torch.long)])


@pytest.mark.parametrize("classes", [2, 3, 5, 7])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_other_numbers_of_classes(method, classes):
    trained, y = model(method), labels(classes)
    if (method, classes) in REFUSED:
        refusal = rf"cannot take {classes} \(the entries of .* belong to no class\)"
        with pytest.raises(UsageError, match=refusal):
            trained.adapt(pixels(len(y)), y, classes)
        return
    if classes > 5 and method in COUNTED:
        with pytest.raises(
            UsageError, match=f"can take fewer, not {classes}; train it with ways = {classes}"
        ):
            trained.adapt(pixels(len(y)), y, classes)
        return
    adapted = trained.adapt(pixels(len(y)), y, classes)
    found = adapted.probabilities(pixels(4, seed=1))
    assert found.shape == (4, classes)
    assert torch.allclose(found.sum(1), torch.ones(4).double())
    assert found.isfinite().all()


def scattered(method: str = "pamela") -> dict[str, torch.Tensor]:
    """Return random learned parameters, no two of them equal."""
    learner = model(method).learner(5)
    return {k: torch.randn_like(v) if v.is_floating_point() else v for k, v in learner.state_dict().items()}


def test_for_as_many_classes_as_trained_nothing_changes():
    learned = scattered()
    same = change_ways(config(), learned, INK, 5, CPU).state_dict()
    assert same.keys() == learned.keys()
    assert all(torch.equal(same[k].float(), learned[k].float()) for k in learned)


@pytest.mark.parametrize("classes", [2, 7, 12])
def test_rows_of_the_last_layer_are_taken_in_turn_and_their_rates_grow_with_the_classes(classes):
    learned = scattered()
    own, other = (change_ways(config(), learned, INK, n, CPU) for n in (5, classes))
    turns = [i % 5 for i in range(classes)]
    for name in ("head.weight", "head.bias"):
        assert torch.equal(other.state_dict()[f"model.{name}"], own.state_dict()[f"model.{name}"][turns])
    assert isinstance(own, MetaLearner)
    assert isinstance(other, MetaLearner)
    for name, growth in (("q", classes / 5), ("p", 1.0)):
        before, after = (
            rule.layout.views(rule.coefficients()[name].groups(getattr(rule, name)[1]))
            for rule in (own.rule, other.rule)
        )
        for layer, values in before.items():
            expected = values[turns] * growth if layer.startswith("head") else values
            assert torch.allclose(after[layer], expected), f"{name} of {layer}"


GRANULARITIES = ["layer", "tensor", "filter", "tensor-channel", "parameter"]


@pytest.mark.parametrize(
    ("method", "grown"),
    [
        *(({"name": "pamela", "q_granularity": granularity}, 0.04) for granularity in GRANULARITIES),
        ({"name": "pamela", "q_granularity": "model"}, 0.01),
        ({"name": "meta-sgd"}, 0.04),
        ({"name": "maml++"}, 0.04),
        ({"name": "alfa"}, 0.04),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else "",
)
def test_step_sizes_of_the_last_layer_grow_unless_other_layers_share_them(method, grown):
    trained = Config.from_dict({**config().to_dict(), "method": {**method, "rate": 0.01}})
    rule = change_ways(trained, build(trained, CPU, INK).state_dict(), INK, 20, CPU).rule
    ((name, sizes),) = ((n, c) for n, c in rule.coefficients().items() if c.step_size is not None)
    groups = sizes.groups or torch.nn.Identity()
    for entry, values in rule.layout.views(sizes.step_size * groups(getattr(rule, name))).items():
        expected = grown if entry.startswith("head.") else 0.01
        torch.testing.assert_close(values, torch.full_like(values, expected))


def test_matrices_over_classes_keep_their_sort_of_entries():
    """Entries between copies of one class are the mean off-diagonal value, not the diagonal one."""
    values = torch.tensor([[9.0, 1.0], [2.0, 8.0]])
    found = repeat_classes(values, torch.Size([3, 3]))
    assert found.tolist() == [[9.0, 1.0, 1.5], [2.0, 8.0, 2.0], [1.5, 1.0, 9.0]]


@pytest.mark.parametrize("classes", [-1, 0, 1, MAX_CLASSES + 1])
def test_no_less_than_two_classes_and_no_more_than_allowed(classes):
    with pytest.raises(UsageError, match=f"classes: {classes} is not allowed; must be 2 to 100"):
        change_ways(config(), {}, INK, classes, CPU)


def test_shapes_without_a_counterpart_are_refused():
    with pytest.raises(ValueError, match="no counterpart"):
        repeat_classes(torch.zeros(2, 3), torch.Size([4, 4]))


def test_classes_with_few_pictures_count_as_much_as_those_with_many():
    x, y = pixels(6), torch.tensor([1, 1, 1, 0, 2, 2])
    even = arrange(x, y, 3)
    assert torch.bincount(y[even]).tolist() == [3, 3, 3]
    assert sorted(torch.bincount(even).tolist()) == [1, 1, 1, 1, 2, 3]
    trained = model()
    uneven = trained.adapt(x, y, 3).probabilities(pixels(4, seed=1))
    again = trained.adapt(x[even], y[even], 3).probabilities(pixels(4, seed=1))
    assert torch.allclose(uneven, again, atol=1e-6)


PARTS = {  # tensors with classes along a part of an axis: the axis, and what precedes and follows the classes
    "hsml": {
        "rule.encoder.0.weight": (1, 32, 0),
        "rule.decoder.2.weight": (0, 32, 0),
        "rule.decoder.2.bias": (0, 32, 0),
    },
    "mt-net": {"rule.logits": (0, 16, 0)},
    "mann": {"head.controller.weight_ih": (1, 4, 40)},
    "lstm": {"head.cells.0.weight_ih": (1, 4, 0)},
}


@pytest.mark.parametrize("classes", [3, 7])
@pytest.mark.parametrize("method", PARTS)
def test_only_the_part_of_an_axis_that_belongs_to_classes_is_repeated(method, classes):
    if classes > 5 and method in COUNTED:
        pytest.skip("takes no more classes than in training")
    learned = scattered(method)
    state = change_ways(config(method), learned, INK, classes, CPU).state_dict()
    for name, (axis, before, after) in PARTS[method].items():
        turns = [before + i % 5 for i in range(classes)]
        kept = [*range(before), *turns, *range(before + 5, before + 5 + after)]
        assert learned[name].shape[axis] == before + 5 + after
        assert torch.equal(state[name], learned[name].index_select(axis, torch.tensor(kept)).to(state[name]))


@pytest.mark.parametrize("classes", [3, 7])
def test_gates_of_hsml_keep_their_parameters(classes):
    learned = scattered("hsml")
    own, other = (change_ways(config("hsml"), learned, INK, n, CPU) for n in (5, classes))
    assert isinstance(own, MetaLearner)
    assert isinstance(other, MetaLearner)
    before, after = (each.rule.layout.views(each.rule.gates.weight.T) for each in (own, other))
    turns = [i % 5 for i in range(classes)]
    for name, values in before.items():
        assert torch.equal(after[name], values[:, turns] if name.startswith("head") else values)
