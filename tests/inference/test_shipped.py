"""The models that ship are what their presets train, and do what the documents say of them."""

from __future__ import annotations

import pytest
import torch

from pathaware.inference.learning import untrained_model
from pathaware.inference.trained_model import TrainedModel, find_run, shipped
from pathaware.training.checksummed import CHECKPOINT, read_checksummed
from pathaware.training.config import Config, differences
from pathaware.training.evaluation import evaluate
from pathaware.training.presets import load_preset
from pathaware.training.run_files import read_run_tables
from pathaware.training.run_folder import Run
from tests.training.fits import in_memory


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


RETRAINABLE = ("glyphs", "sine")
"""Those whose data come with the package."""


def test_there_are_three():
    assert shipped() == ["glyphs", "photos", "sine"]


@pytest.mark.parametrize("name", RETRAINABLE)
def test_a_shipped_model_was_trained_by_its_preset(name):
    run = Run.open(find_run(name))
    assert run.finished
    assert not differences(run.config, Config.from_dict(load_preset(f"shipped-{name}")))


@pytest.mark.parametrize("name", RETRAINABLE)
def test_training_it_again_begins_as_its_record_says(name):
    """The first report of the record, from the seed. Other CPUs round otherwise, so not to the last bit."""
    run = Run.open(find_run(name))
    first = next(run.metrics())
    fit = in_memory(run.config)
    progress = None
    while progress is None:
        progress = fit.advance()
    assert progress.iteration == first["iteration"]
    assert progress.loss == pytest.approx(first["loss"], rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", RETRAINABLE)
def test_training_it_again_gives_as_good_a_model(name):
    run = Run.open(find_run(name))
    fit = in_memory(run.config)
    while not fit.done:
        fit.advance()
    metric = run.config.problem.metric
    found, kept = (
        evaluate(learner, run.config.problem, tasks=200).summary()
        for learner in (fit.objective.learner, run.load("cpu"))
    )
    assert abs(found[metric] - kept[metric]) < 2 * kept[f"{metric}_ci95"]


def test_photos_is_a_backbone_in_a_package_of_its_own_with_an_untrained_head():
    folder = find_run("photos")
    tensors, about = read_checksummed(folder / CHECKPOINT)
    built = untrained_model(about["frozen_weights"], None, None, "cpu")
    assert not differences(Config.of_run(read_run_tables(folder)), built.config)
    opened = TrainedModel.open("photos", "cpu")
    assert all(name.startswith("head.") for name in tensors)
    assert opened._learned.keys() == built._learned.keys()
    assert all(torch.equal(opened._learned[name], value) for name, value in built._learned.items())
    assert sum(path.stat().st_size for path in folder.iterdir()) < 50_000


def test_photos_tells_classes_apart_in_any_number_and_warns_of_drawings():
    """Made-up photographs: the hue of each class is its own."""
    model = TrainedModel.open("photos", "cpu")
    hues = torch.tensor([[200, 60, 60], [60, 190, 60], [60, 60, 200]])

    def pictures(count):
        noise = torch.nn.functional.interpolate(40 * torch.randn(3 * count, 3, 6, 6), 224, mode="bicubic")
        x = hues.repeat_interleave(count, 0)[:, :, None, None] + noise
        return x.clamp(0, 255).to(torch.uint8), torch.arange(3).repeat_interleave(count)

    torch.manual_seed(0)
    x, y = pictures(2)
    kept = torch.tensor([0, 1, 2, 4, 5])  # one class has a single picture
    queries, truth = pictures(3)
    found = model.adapt(x[kept], y[kept], 3).probabilities(queries)
    assert (found.argmax(1) == truth).double().mean() > 0.8
    assert torch.allclose(found.sum(1), torch.ones(9, dtype=torch.float64))
    drawing = torch.full((4, 3, 224, 224), 255, dtype=torch.uint8)
    drawing[:, :, 80:130, 50:60] = 0
    assert model.typical is not None
    assert "4 of 4" in (model.typical.warning(drawing) or "")


def test_it_can_be_used_where_its_data_set_is_not(monkeypatch, tmp_path):
    monkeypatch.setenv("PATHAWARE_DATA", str(tmp_path))
    Run.open(find_run("glyphs")).load("cpu")
    Run.open(find_run("photos")).load("cpu")
    assert not list(tmp_path.iterdir())


def test_a_folder_of_the_same_name_comes_first(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert find_run("glyphs").is_absolute()
    (tmp_path / "glyphs").mkdir()
    assert find_run("glyphs").is_absolute()  # a folder of pictures is no run
    (tmp_path / "glyphs" / "config.toml").touch()
    assert find_run("glyphs").resolve() == tmp_path / "glyphs"
