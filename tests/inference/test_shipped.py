"""The models that ship are what their presets train, and do what the documents say of them."""

from __future__ import annotations

import pytest
import torch

from pathaware.inference.trained_model import find_run, shipped
from pathaware.training.config import Config, differences
from pathaware.training.evaluation import evaluate
from pathaware.training.presets import load_preset
from pathaware.training.run_folder import Run
from pathaware.training.session import log_interval
from pathaware.training.trainer import Trainer


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


def test_there_are_two():
    assert shipped() == ["glyphs", "sine"]


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_model_was_trained_by_its_preset(name):
    run = Run.open(find_run(name))
    assert run.finished
    assert not differences(run.config, Config.from_dict(load_preset(f"shipped-{name}")))


@pytest.mark.parametrize("name", shipped())
def test_training_it_again_begins_as_its_record_says(name):
    """The first report of the record, from the seed. Other CPUs round otherwise, so not to the last bit."""
    run = Run.open(find_run(name))
    first = next(run.metrics())
    trainer = Trainer(run.config, None, log_interval(run.config.training))
    progress = None
    while progress is None:
        progress = trainer.advance()
    assert progress.iteration == first["iteration"]
    assert progress.loss == pytest.approx(first["loss"], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", shipped())
def test_training_it_again_gives_as_good_a_model(name):
    run = Run.open(find_run(name))
    trainer = Trainer(run.config)
    while not trainer.done:
        trainer.advance()
    metric = run.config.problem.metric
    found, kept = (
        evaluate(learner, run.config.problem, tasks=200).summary()
        for learner in (trainer.learner, run.load("cpu"))
    )
    assert abs(found[metric] - kept[metric]) < 2 * kept[f"{metric}_ci95"]


def test_it_can_be_used_where_its_data_set_is_not(monkeypatch, tmp_path):
    monkeypatch.setenv("PATHAWARE_DATA", str(tmp_path))
    Run.open(find_run("glyphs")).load("cpu")
    assert not list(tmp_path.iterdir())


def test_a_folder_of_the_same_name_comes_first(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert find_run("glyphs").is_absolute()
    (tmp_path / "glyphs").mkdir()
    assert find_run("glyphs").resolve() == tmp_path / "glyphs"
