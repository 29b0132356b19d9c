"""Few-shot classification end to end, small, on glyphs."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from pathaware import UsageError
from pathaware.models import build_model
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate
from pathaware.training.meta_training import MetaTraining, build
from pathaware.training.provenance import evaluation_record, task_values, write_record
from pathaware.training.train import train
from tests.training.fits import trained

SMALL = {"name": "classification", "data": "glyphs", "shots": 1, "queries": 3, "width": 8}


def config(problem: dict | None = None, method: dict | None = None, **training) -> Config:
    return Config.from_dict(
        {
            "problem": {**SMALL, **(problem or {})},
            "method": {"name": "pamela", "steps": 3, "rate": 1.0, "q_start": 0.1, **(method or {})},
            "training": {"iterations": 25, "validate": 0, **training},
        }
    )


def own_network(ways: int, size: int, channels: int) -> nn.Module:
    """Named by its import path in a test below."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, ways))


def test_adaptation_turns_chance_into_knowledge_on_held_out_scripts(tmp_path):
    settings = config(iterations=100, tasks=2, rate=1e-2, validate=100, validation_tasks=20)
    run = train(settings, tmp_path / "run")
    result = evaluate(run.load(), settings.problem, tasks=60)
    before, after = (result.values[:, j].mean().item() for j in (0, -1))
    assert abs(before - 0.2) < 0.1
    assert after > before + 0.2
    write_record(tmp_path / "record.json", evaluation_record(run, result))
    record = json.loads((tmp_path / "record.json").read_text())
    assert set(record["result"]) >= {"accuracy", "accuracy_ci95", "accuracy_per_step", "tasks", "split"}
    assert record["result"]["transductive"] is True
    assert len(record["validation"]) == 1
    assert torch.equal(task_values(record), result.values[:, -1].float())


def test_inductive_evaluation_says_so_and_gives_other_numbers():
    settings = config()
    learner = build(settings)
    ways = [evaluate(learner, settings.problem, tasks=10, inductive=i) for i in (False, True)]
    assert [w.summary()["transductive"] for w in ways] == [True, False]
    assert not torch.equal(ways[0].values, ways[1].values)


def test_memory_savers_change_no_number():
    plain, saving = (
        trained(config(iterations=2, dtype="float64", **extra)).state_dict()
        for extra in ({}, {"chunk": 1, "checkpoint": True})
    )
    assert all(torch.allclose(plain[name], saving[name], atol=1e-10) for name in plain)


@pytest.mark.parametrize("name", ["conv4", "resnet12"])
def test_networks_by_name_run_batched_and_count_their_classes(name):
    settings = config({"model_name": name, "width": 4}, iterations=1)
    learner = trained(settings)
    assert learner.execution.name == "batched"
    assert learner.model(torch.randn(2, 1, 28, 28)).shape == (2, 5)


def test_a_network_of_ones_own_is_found_by_its_import_path():
    settings = config({"model_name": f"{__name__}:own_network", "width": 0})
    assert isinstance(settings.problem.model(), nn.Sequential)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vgg", "model: 'vgg' must be one of conv4, resnet12, efficientnet-lite0, efficientnet-lite2, or"),
        ("math:pi", "model: math:pi cannot be called with ways, size, channels"),
        ("builtins:dict", "model: builtins:dict returned dict, not an nn.Module"),
    ],
)
def test_a_network_that_cannot_be_built_is_named(name, message):
    with pytest.raises(UsageError, match=message):
        build_model(name, ways=5, size=28, channels=1)


def test_a_split_that_does_not_exist_is_refused():
    settings = config()
    with pytest.raises(UsageError, match="split: 'dev' must be one of train, val, test"):
        evaluate(build(settings), settings.problem, split="dev", tasks=1)


def test_a_prediction_that_is_not_finite_is_wrong():
    outputs = torch.full((1, 4, 5), torch.nan)
    outputs[0, 3] = torch.arange(5.0)
    targets = torch.tensor([[0, 0, 1, 4]])
    assert config().problem.measure(outputs, targets).tolist() == [0.25]


@pytest.mark.parametrize("head", ["prototypes", "projected"])
@pytest.mark.parametrize("name", ["reptile", "warp-grad", "imaml", "imaml-hf"])
def test_methods_that_use_the_first_point_of_a_path_as_initialisation_refuse_another_last_layer(name, head):
    tables = {"problem": SMALL, "method": {"name": name}, "training": {"iterations": 2, "head": head}}
    with pytest.raises(UsageError, match="learns the initialisation of every layer"):
        MetaTraining(Config.from_dict(tables)).try_out()
