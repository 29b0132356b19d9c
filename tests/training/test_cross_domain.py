"""Trained models on the classes of another data set: images, tasks, records and refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from pathaware.core.errors import UsageError
from pathaware.core.few_shot import part_of
from pathaware.core.seeding import generator
from pathaware.data import open_store
from pathaware.data.episodes import Augmentation, EpisodePlan, ImageViews
from pathaware.data.pixels import ImageInput
from pathaware.data.store import MANIFEST, PIXELS, ClassSpan, ImageStore, checksum
from pathaware.inference.change_ways import load_for
from pathaware.models.backbones import FrozenBackbone
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate, tasks_for
from pathaware.training.problems import CrossDomain
from pathaware.training.provenance import evaluation_record
from pathaware.training.run_folder import Run
from pathaware.training.train import train
from pathaware_research import records
from pathaware_research.experiments import Result, Results
from pathaware_research.studies import cross_domain
from pathaware_research.verification import obstacle, verify
from tests.calling import done, refused
from tests.training.test_classifier import small_store

COLOUR, GREY, WIDE = "colour", "grey", "wide"


def write_store(folder: Path, store: ImageStore) -> None:
    """Write its classes of the splits train and val, and all of them again as test classes."""
    classes, images = store.manifest.classes, torch.cat([store.images, store.images])
    tested = [ClassSpan(f"test-{c.name}", "test", c.start + len(store), c.count) for c in classes]
    manifest = dataclasses.replace(store.manifest, classes=(*classes, *tested), sha256=checksum(images))
    (folder / store.name).mkdir(parents=True)
    (folder / store.name / PIXELS).write_bytes(images.numpy().tobytes())
    (folder / store.name / MANIFEST).write_text(manifest.to_json())


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    write_store(folder, small_store(COLOUR, 16))
    write_store(folder, small_store(GREY, 18, mirror=False, channels=1))
    write_store(folder, small_store(WIDE, 20))
    return folder


@pytest.fixture(autouse=True)
def _data(stores, monkeypatch):
    monkeypatch.setenv("PATHAWARE_DATA", str(stores))


def trained(folder: Path, data: str, **changes: object) -> Run:
    size = {"ways": 3, "shots": 2, "queries": 4, "width": 4}
    problem = {"name": "classification", "data": data, **size, **changes}
    settings = Config.from_dict(
        {
            "problem": problem,
            "method": {"name": "pamela", "steps": 2, "rate": 1.0, "q_start": 0.1},
            "training": {"iterations": 2, "validate": 0, "tasks": 2, "device": "cpu", "compile": "off"},
        }
    )
    return train(settings, folder / f"{data}-pamela-2shot-2-seed0")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, stores):
    folder = tmp_path_factory.mktemp("runs")
    torch.set_default_dtype(torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATHAWARE_DATA", str(stores))
        return {data: trained(folder, data) for data in (COLOUR, GREY)}


def two_layers(ways: int, size: int, channels: int) -> nn.Module:
    """A network without batch norm, which can be frozen without pretrained weights."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, 6), nn.ReLU(), nn.Linear(6, ways))


@pytest.mark.parametrize(("model", "data"), [(COLOUR, GREY), (COLOUR, WIDE), (GREY, COLOUR)])
def test_tasks_are_those_of_the_other_data_set_in_images_of_the_training(runs, model, data):
    run = runs[model]
    learner, problem = load_for(run, "cpu", data=data)
    own = dataclasses.replace(run.config.problem, data=data)
    drawn, expected = (
        p.tasks("test", "cpu", torch.float32).sample(3, generator(0, "a task")) for p in (problem, own)
    )
    image_input = ImageInput.of(open_store(model))
    assert drawn.support_x.shape[2:] == image_input.shape
    for found, theirs in ((drawn.support_x, expected.support_x), (drawn.query_x, expected.query_x)):
        manifest = open_store(data).manifest
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (manifest.mean, manifest.std))
        pixels = ((theirs * std + mean) * 255).round().clamp(0, 255).to(torch.uint8).flatten(0, 1)
        # as `predict` reads the images that a user gives
        assert torch.allclose(found.flatten(0, 1), image_input.normalised(image_input.stack(pixels)))
    assert torch.equal(drawn.query_y, expected.query_y)
    result = evaluate(learner, problem, tasks=4)
    assert result.problem.label == f"{data}-3way-2shot"
    assert result.other_tasks(run.config.problem) == {"data": data, "ways": 3, "shots": 2}


def test_images_that_fit_are_not_copied_and_normalised_as_in_training(stores):
    store, other = small_store(WIDE, 16), ImageInput.of(small_store(COLOUR, 16))
    image_input = dataclasses.replace(other, mean=(0.1, 0.2, 0.3))
    converted = image_input.converted(store, "test")
    assert converted.images is store.images
    assert converted.manifest.mean == (0.1, 0.2, 0.3)


def test_converted_pixels_have_a_digest_of_their_own():
    """Features of frozen networks are cached by it."""
    store = small_store(COLOUR, 16)
    small, large = (
        dataclasses.replace(ImageInput.of(store), size=size).converted(store, "val") for size in (8, 20)
    )
    assert len({each.manifest.sha256 for each in (small, large, store)}) == 3
    assert small.manifest.sha256 == checksum(small.images)
    assert [c.count for c in small.manifest.classes] == [24] * 3


def test_ink_is_inverted_for_models_of_ink_only_if_it_is_dark():
    dark_on_paper = small_store(GREY, 18, channels=1)
    dark_on_paper.images.fill_(250)
    dark_on_paper.images[:, :, 4:6, 4:6] = 10
    image_input = dataclasses.replace(ImageInput.of(dark_on_paper), ink=True)
    assert image_input.converted(dark_on_paper, "val").images[0, 0, 0, 0] == 5
    ink = ImageStore(dataclasses.replace(dark_on_paper.manifest, ink=True), dark_on_paper.images)
    assert image_input.converted(ink, "val").images is ink.images


def test_mirrored_views_need_images_that_may_be_mirrored_in_both(runs):
    learner, wide = load_for(runs[COLOUR], "cpu", data=WIDE)
    assert evaluate(learner, wide, tasks=2, views="mirror").views == "mirror"
    for model, data in ((COLOUR, GREY), (GREY, COLOUR)):
        learner, problem = load_for(runs[model], "cpu", data=data)
        with pytest.raises(UsageError, match="may be mirrored"):
            evaluate(learner, problem, tasks=2, views="mirror")


def test_a_support_set_is_mirrored_only_if_its_images_may_be(runs):
    run = runs[COLOUR]
    frozen = dataclasses.replace(run.config.problem, adapt="head", mirror_support=True)
    inputs = run.learned()[1]
    assert CrossDomain.of(frozen, WIDE, inputs).mirror_support
    assert not CrossDomain.of(frozen, GREY, inputs).mirror_support


def test_a_frozen_network_takes_features_of_the_converted_images(tmp_path, monkeypatch):
    monkeypatch.setenv("PATHAWARE_CACHE", str(tmp_path / "cache"))
    run = trained(tmp_path, COLOUR, adapt="head", model_name=f"{__name__}:two_layers", width=0)
    line = "evaluate", run.folder, "--tasks", 2, "--device", "cpu", "--baselines"
    done(*line)
    cached = len(list((tmp_path / "cache").rglob("*.safetensors")))
    done(*line, "--data", WIDE)
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == cached + 1
    learner, problem = load_for(run, "cpu", data=WIDE)
    store = ImageInput.of(open_store(COLOUR)).converted(open_store(WIDE), "test")
    drawn = tasks_for(learner, problem, problem.tasks("test", "cpu", torch.float32))
    plan = drawn.draw(1, generator(0, "a task"))
    images = ImageViews(store, Augmentation()).show(EpisodePlan(plan.images))
    backbone = part_of(learner.model, FrozenBackbone)
    assert backbone is not None
    expected = backbone(images)[: 3 * 2]
    assert torch.allclose(drawn.gather(plan).support_x[0], expected, rtol=1e-2, atol=1e-2)  # kept in half


def test_the_record_says_what_it_was_evaluated_on_and_no_table_takes_it_for_another(runs, tmp_path, stores):
    run, target = runs[COLOUR], tmp_path / f"{runs[COLOUR].folder.name}.json"
    line = "evaluate", run.folder, "--tasks", 5, "--device", "cpu"
    assert f"5 test tasks of {GREY}-3way-2shot" in done(*line, "--data", GREY, "--record", target)
    text = target.read_text()
    record = json.loads(text)
    assert record["evaluated"] == {"data": GREY, "ways": 3, "shots": 2}
    assert record["config"]["problem"]["data"] == COLOUR
    assert str(stores) not in text
    assert str(run.folder.parent) not in text
    found = verify(tmp_path)
    assert found.checked == [target.name]
    assert not found.mismatches
    assert "not those of its training" in str(obstacle(record))
    assert Results.read(tmp_path).found == []
    plain = {**record}
    del plain["evaluated"]
    assert Result(record).conditions != Result(plain).conditions
    done(*line, "--record", target, "--replace")
    assert "evaluated" not in json.loads(target.read_text())
    assert len(Results.read(tmp_path).found) == 1


def test_records_with_other_ways_are_in_no_table_either(runs, tmp_path):
    run, target = runs[COLOUR], tmp_path / "record.json"
    line = "evaluate", run.folder, "--tasks", 2, "--device", "cpu", "--record", target, "--json"
    expected = {"data": COLOUR, "ways": 4, "shots": 2}
    assert json.loads(done(*line, "--ways", 4))["evaluated"] == expected
    assert json.loads(target.read_text())["evaluated"] == expected
    assert Results.read(tmp_path).found == []
    done(*line, "--ways", 4, "--data", GREY, "--replace")
    assert json.loads(target.read_text())["evaluated"] == {**expected, "data": GREY}


def test_the_data_set_of_the_training_is_no_other(runs):
    run = runs[COLOUR]
    learner, problem = load_for(run, "cpu", data=COLOUR)
    assert problem == run.config.problem
    record = evaluation_record(run, evaluate(learner, problem, tasks=2))
    assert "evaluated" not in record


def test_the_training_data_set_is_not_needed(runs, stores, tmp_path, monkeypatch):
    write_store(tmp_path, small_store(GREY, 18, channels=1))
    monkeypatch.setenv("PATHAWARE_DATA", str(tmp_path))
    learner, problem = load_for(runs[COLOUR], "cpu", data=GREY)
    assert len(evaluate(learner, problem, tasks=2).values) == 2


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("evaluate {run} --data graay", "did you mean grey?"),
        ("evaluate {run} --data cifar_fs", "did you mean cifar-fs?"),
        ("evaluate {run} --data ../grey", "data set name '../grey'"),
        ("evaluate sine --data grey", "--data: sine-k10 has no images"),
        ("evaluate {run} --data grey --open-set", "--open-set: cannot be combined with another data set"),
        ("evaluate {run} --data grey --calibrate", "--calibrate: cannot be combined with another data set"),
        ("evaluate {run} --data grey --ways 50", "the test split of grey has only 8 classes"),
    ],
)
def test_refusals_are_one_line(runs, line, expected):
    assert expected in refused(*line.format(run=runs[COLOUR].folder).split(), "--device", "cpu")


def test_the_study_evaluates_each_run_on_each_other_data_set_once(runs, tmp_path, capsys, monkeypatch):
    folders = [str(run.folder) for run in runs.values()]
    arguments = [*folders, "--data", GREY, "--data", WIDE, "--tasks", "2", "--device", "cpu"]
    monkeypatch.setattr(cross_domain, "SAME_IMAGES", ({GREY, WIDE},))
    cross_domain.main([*arguments, "--records", str(tmp_path)])
    names = [f"{runs[COLOUR].folder.name}-on-{data}.json" for data in (GREY, WIDE)]  # GREY shares with WIDE
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert verify(tmp_path).checked == names
    capsys.readouterr()
    cross_domain.main([*arguments, "--records", str(tmp_path)])
    assert capsys.readouterr().out == ""


def test_the_table_reads_the_records_of_the_study(runs, tmp_path):
    from pathaware_research.pages.evidence_page import NOT_RUN, SHARED, cross_domain_table

    run = runs[COLOUR]
    learner, problem = load_for(run, "cpu", data=GREY)
    record = evaluation_record(run, evaluate(learner, problem, tasks=3))
    name = cross_domain.run_name("cifar-fs", "pamela", 5, "miniimagenet")
    records.write("cross-domain", {f"{name}-on-miniimagenet": record}, tmp_path)
    rows = {row.cells[:3]: row.cells[3:] for row in cross_domain_table(tmp_path).rows}
    found = rows["CIFAR-FS", "5", cross_domain.METHODS["pamela"]]
    assert found[0].startswith(f"{100 * record['result']['accuracy']:.2f} ± ")
    assert found[1:] == (NOT_RUN, SHARED, NOT_RUN, NOT_RUN)
    assert set(rows["miniImageNet", "1", "MAML"]) == {NOT_RUN}
