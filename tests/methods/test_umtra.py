"""UMTRA: MAML on tasks from images without labels."""

from __future__ import annotations

import pytest
import torch

from pathaware.core.errors import UsageError
from pathaware.core.seeding import generator
from pathaware.data.episodes import ImageEpisodes
from pathaware.data.unlabelled import UnlabelledEpisodes
from pathaware.methods import METHODS
from pathaware.methods.maml import GradientDescent
from pathaware.training.config import Config
from tests.training.fits import continued, in_memory

SMALL = {"name": "classification", "width": 4, "shots": 1, "queries": 1}
TRAINING = {"iterations": 4, "tasks": 2, "device": "cpu", "threads": 1, "validate": 0}


def config(method: str = "umtra", training: dict | None = None, **problem) -> Config:
    return Config.from_dict(
        {
            "problem": {**SMALL, **problem},
            "method": {"name": method},
            "training": {**TRAINING, **(training or {})},
        }
    )


def test_it_is_maml_with_tasks_without_labels():
    assert METHODS["umtra"].adapter is GradientDescent
    assert METHODS["umtra"].settings() == METHODS["maml"].settings()
    problem = config().problem
    assert problem.labels is False
    assert problem == config("maml", labels=False).problem


def test_training_tasks_have_no_labels_and_all_others_do():
    problem = config("r2d2", labels=False).problem
    kinds = [type(problem.tasks(split, "cpu", torch.float32)) for split in ("train", "val", "test")]
    assert kinds == [UnlabelledEpisodes, ImageEpisodes, ImageEpisodes]
    ordinary = config("r2d2").problem
    assert type(ordinary.tasks("train", "cpu", torch.float32)) is ImageEpisodes
    assert ordinary.label == "glyphs-5way-1shot"
    assert problem.label == "glyphs-5way-1shot-unlabelled"
    assert problem.paper_key is None


def test_test_tasks_are_those_of_every_other_method():
    sources = [config(m).problem.tasks("test", "cpu", torch.float32) for m in ("umtra", "maml")]
    one, other = (source.sample(3, generator(0, "draw")) for source in sources)
    for a, b in zip(one.tensors(), other.tensors(), strict=True):
        assert torch.equal(a, b)


def test_its_configuration_is_kept_and_read_again():
    kept = config()
    assert "labels = false" in kept.to_toml()
    assert Config.from_toml(kept.to_toml()) == kept


def test_labels_cannot_be_asked_for():
    with pytest.raises(UsageError, match="labels: true is not allowed with umtra; false"):
        config(labels=True)


def test_it_is_for_images():
    with pytest.raises(UsageError, match="umtra is for classification"):
        Config.from_dict({"problem": {"name": "sine"}, "method": {"name": "umtra"}})


@pytest.mark.parametrize("method", ["umtra", "prototypical"])
def test_a_resumed_run_is_the_unbroken_one_to_the_last_bit(method, tmp_path):
    torch.set_default_dtype(torch.float32)
    unlabelled = config(method, labels=False)
    fit = in_memory(unlabelled)
    for _ in range(2):
        fit.advance()
    with continued(fit, tmp_path / "run") as resumed:
        for _ in range(2):
            fit.advance()
            resumed.advance()
    both = (each.objective.learner.parameters() for each in (fit, resumed))
    assert all(torch.equal(a, b) for a, b in zip(*both, strict=True))
