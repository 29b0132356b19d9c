"""Examples in docstrings run, and the names that people use first have one."""

from __future__ import annotations

import doctest
import inspect
from importlib import import_module
from pathlib import Path

import pytest
import torch

import pathaware

SOURCE = Path(pathaware.__file__).parent
MODULES = sorted(
    ".".join(("pathaware", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)
CENTRAL = (
    *("pathaware.MetaLearner", "pathaware.Pamela", "pathaware.GradientDescent", "pathaware.Episodes"),
    *("pathaware.FewShotClassifier", "pathaware.FewShotRegressor", "pathaware.OnlineLearner"),
    *("pathaware.Layout", "pathaware.inference.trained_model.TrainedModel"),
    *("pathaware.training.config.Config", "pathaware.training.run_folder.Run"),
    *("pathaware.training.loop.Fit", "pathaware.training.train.train"),
    *("pathaware.training.evaluation.evaluate", "pathaware.methods.method.Method"),
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, monkeypatch):
    torch.set_default_dtype(torch.float32)
    monkeypatch.setenv("COLUMNS", "80")
    result = doctest.testmod(import_module(name))
    assert result.attempted
    assert not result.failed


@pytest.mark.parametrize("name", [f"pathaware.{name}" for name in pathaware.__all__])
def test_public_names_and_their_members_are_described(name):
    found = getattr(pathaware, name.rpartition(".")[2])
    assert inspect.getdoc(found)
    for member, value in vars(found).items():
        plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if not member.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, property)):
            assert inspect.getdoc(getattr(found, member)), f"{name}.{member}"


@pytest.mark.parametrize("name", CENTRAL)
def test_the_names_people_use_first_have_an_example(name):
    module, _, attribute = name.rpartition(".")
    text = inspect.getdoc(getattr(import_module(module), attribute)) or ""
    examples = doctest.DocTestParser().get_examples(text)
    assert examples
    assert not any(example.options for example in examples), "an example that is skipped shows nothing"
    assert any(example.want for example in examples)
