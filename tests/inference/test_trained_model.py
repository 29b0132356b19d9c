"""Adapting says what happened on the way, and is what adapting and answering give one by one."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from pathaware.core.few_shot import FewShotLearner
from pathaware.inference.trained_model import TrainedModel, arrange
from pathaware.training.meta_training import build
from pathaware.training.run_folder import Run
from tests.inference.models import config, model, pixels


@pytest.mark.parametrize("method", ["pamela", "maml", "prototypical"])
def test_one_walk_gives_the_network_and_the_answers_on_the_way(method):
    learner = model(method).learner(3).double()
    x, y = torch.randn(6, 1, 28, 28), torch.arange(3).repeat(2)
    ((network, answers),) = learner.adapt_each(x[None], y[None])
    ((alone, asked),) = FewShotLearner.adapt_each(learner, x[None], y[None])
    torch.testing.assert_close(network(x), alone(x))
    torch.testing.assert_close(answers.outputs, asked.outputs)


def test_steps_are_those_of_the_examples_and_end_with_the_network():
    trained, x, y = model(), pixels(6), torch.arange(3).repeat(2)
    adapted = trained.adapt(x, y, 3)
    assert [step.step for step in adapted.steps] == [0, 1, 2, 3, 4, 5]
    logits = adapted.network(trained.image_input.normalised(x))
    assert adapted.steps[-1].loss == pytest.approx(cross_entropy(logits, y).item(), rel=1e-4)
    assert adapted.steps[-1].accuracy == (logits.argmax(1) == y).double().mean().item()


@pytest.mark.parametrize("method", ["pamela", "reptile", "relation", "mann"])
def test_the_order_of_the_images_and_of_small_classes_has_no_effect(method):
    """Also of sequence models, and where the images of small classes are repeated."""
    trained, x, y = model(method), pixels(7), torch.tensor([0, 0, 0, 1, 1, 2, 2])
    order = torch.tensor([4, 6, 0, 2, 5, 3, 1])
    first = trained.adapt(x, y, 3).probabilities(pixels(4, seed=1))
    again = trained.adapt(x[order], y[order], 3).probabilities(pixels(4, seed=1))
    assert torch.equal(first, again)


def test_the_support_set_mixes_the_classes_as_training_does():
    y = torch.arange(5).repeat_interleave(8)
    found = torch.stack([y[arrange(pixels(40, seed=s), y, 5)] for s in range(30)])
    at_each_position = torch.stack([(found == label).sum(0) for label in range(5)])
    assert at_each_position.max() <= 15  # 6 expected; sorted by class it would be 30


def test_a_run_can_be_used_where_its_data_set_is_no_longer(tmp_path, monkeypatch):
    Run.create(tmp_path / "run", config()).save(build(config()), 0)
    monkeypatch.setenv("PATHAWARE_DATA", str(tmp_path / "elsewhere"))
    opened = TrainedModel.open(tmp_path / "run")
    assert opened.image_input.ink
    assert opened.adapt(pixels(4), torch.arange(2).repeat(2), 2).probabilities(pixels(1)).shape == (1, 2)
    assert not (tmp_path / "elsewhere").exists()
