"""`fit` and `evaluate` take tasks of any kind, in a script and without a folder."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

import pathaware
from pathaware import Episodes, UsageError
from pathaware.data.sine import SineWaves
from pathaware.models import mlp
from pathaware.training.config import Config
from pathaware.training.loop import Fit
from pathaware.training.meta_training import MetaTraining
from tests.conftest import small_problem


class Lines(Dataset):
    """Task i: points of the line y = i x / 16."""

    def __len__(self):
        return 16

    def __getitem__(self, i):
        x = torch.linspace(-1, 1, 15)[:, None]
        return x[:5], i / 16 * x[:5], x[5:], i / 16 * x[5:]


def batches() -> DataLoader:
    return DataLoader(Lines(), batch_size=4, collate_fn=Episodes.stack)


def test_fit_takes_the_steps_of_the_command_line():
    tables = {
        "problem": {"name": "sine"},
        "method": {"name": "pamela"},
        "training": {
            "iterations": 12,
            "tasks": 3,
            "clip": 1.0,
            "seed": 5,
            "device": "cpu",
            "dtype": "float64",
        },
    }
    objective = MetaTraining(Config.from_dict(tables))
    problem, before = objective.config.problem, objective.learner.state_dict()
    speed = {"step_size": 0.1, "q_start": 0.1}  # what short runs on waves begin with
    learner = pathaware.pamela(problem.model(), problem.loss, **speed).double()
    learner.load_state_dict({name: value.clone() for name, value in before.items()})
    training = objective.config.training
    log = pathaware.fit(
        learner,
        problem.tasks("train", "cpu", torch.float64),
        12,
        batch=3,
        learning_rate=training.rate,
        schedule=training.schedule,
        clip=1.0,
        seed=5,
    )
    with Fit(objective) as steps:
        while not steps.done:
            last = steps.advance()
    assert last.loss == log[-1].loss
    assert all(map(torch.equal, learner.state_dict().values(), objective.learner.state_dict().values()))


def test_a_loader_of_own_tasks_is_read_again_and_again():
    learner = pathaware.maml(mlp(), F.mse_loss, step_size=0.1)
    untrained = pathaware.evaluate(learner, batches())
    seen = []
    log = pathaware.fit(learner, batches(), 200, learning_rate=0.01, callbacks=[seen.append])
    assert (seen, len(log), log[-1].iteration) == (log, 100, 200)
    trained = pathaware.evaluate(learner, batches())
    assert trained.values.shape == (16, 6)
    assert trained.summary()["mse"] < untrained.summary()["mse"] / 4
    assert pathaware.evaluate(learner, batches(), tasks=6).values.equal(trained.values[:6])


def test_tasks_that_cannot_begin_again_are_refused_when_they_end():
    learner = pathaware.maml(mlp(), F.mse_loss)
    with pytest.raises(UsageError, match="begin again"):
        pathaware.fit(learner, iter(list(batches())), 10)
    with pytest.raises(UsageError, match="tasks: there are none"):
        pathaware.evaluate(learner, [])
    with pytest.raises(UsageError, match="instance of Episodes"):
        pathaware.fit(learner, [torch.zeros(3)], 10)


@pytest.mark.parametrize("name", ["r2d2", "fomaml", "imaml"])
def test_classes_are_measured_by_accuracy(name):
    model, loss, episodes = small_problem("conv")
    learner = getattr(pathaware, name)(model, loss).to(episodes.support_x.dtype)
    result = pathaware.evaluate(learner, [episodes, episodes])
    with torch.no_grad():
        outputs = learner.predictions_per_step(*episodes.tensors()[:3]).outputs[-1]
    expected = (outputs.argmax(-1) == episodes.query_y).double().mean(1)
    assert result.metric.name == "accuracy"
    assert result.values[:, -1].equal(expected.repeat(2))


def test_a_task_source_is_evaluated_as_the_problem_that_has_it():
    config = Config.from_dict({"problem": {"name": "sine"}, "method": {"name": "maml"}})
    learner = pathaware.maml(config.problem.model(), config.problem.loss).float()
    source = config.problem.tasks("test", "cpu", torch.float32)
    assert isinstance(source, SineWaves)
    ours = pathaware.evaluate(learner, source, tasks=30)
    assert ours.values.equal(pathaware.evaluate(learner, config.problem, tasks=30).values)
    assert ours.problem.label == "tasks"
