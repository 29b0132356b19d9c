"""Supervised pretraining: augmentation, losses, resuming, and meta-training that starts from it."""

from __future__ import annotations

import dataclasses
import json
import re
import signal

import pytest
import torch
import torch.nn.functional as F

from pathaware import UsageError
from pathaware.core.errors import Stopped
from pathaware.core.prototype_start import directions
from pathaware.core.seeding import generator
from pathaware.data import catalogue
from pathaware.data.augmentation import cutmix, random_boxes, random_crop
from pathaware.data.labelled import ClassImages, Distortion, resized
from pathaware.data.store import ClassSpan, ImageStore, Manifest
from pathaware.engine import kernels
from pathaware.models import conv4, resnet12
from pathaware.training import supervised
from pathaware.training.checksummed import load_parameters
from pathaware.training.evaluation import evaluate
from pathaware.training.loop import Fit, run_to_end
from pathaware.training.meta_training import build
from pathaware.training.pretrained_classifier import (
    Classifier,
    initialised,
    measure_statistics,
    prototype_accuracy,
    separation,
    start_from,
)
from pathaware.training.run_folder import PretrainRun, Run
from pathaware.training.settings import Pretraining
from pathaware.training.supervised import (
    ClassifierStep,
    Supervised,
    distillation,
    mixed_cross_entropy,
    pretrain,
    turn,
)
from pathaware_research.experiments import own_level
from pathaware_research.studies import pretraining as study
from tests.calling import done
from tests.conftest import distance
from tests.training.fits import in_memory, pretraining
from tests.training.test_classification import config

NAMES = "abcdefgh"


def small_store(name: str = "shapes", size: int = 16, mirror: bool = True, channels: int = 3) -> ImageStore:
    """Eight classes of 24 images: noise around a pattern of the class."""
    random = torch.Generator().manual_seed(len(name))
    patterns = torch.rand(len(NAMES), 1, channels, size, size, generator=random) * 200
    images = patterns + 55 * torch.rand(len(NAMES), 24, channels, size, size, generator=random)
    spans = [
        ClassSpan(f"{name}-{letter}", "train" if i < 5 else "val", 24 * i, 24)
        for i, letter in enumerate(NAMES)
    ]
    shape = (channels, size, size)
    manifest = Manifest(name, shape, tuple(spans), (0.5,) * channels, (0.2,) * channels, mirror, "", "test")
    return ImageStore(manifest, images.flatten(0, 1).to(torch.uint8))


@pytest.fixture(autouse=True)
def _stores(monkeypatch):
    stores = {"shapes": small_store(), "larger": small_store("larger", 20, mirror=False)}
    plain = catalogue.open_store
    monkeypatch.setattr(catalogue, "open_store", lambda name, *where: stores.get(name) or plain(name, *where))


def settings(**changes: object) -> Pretraining:
    values = {"data": "shapes", "width": 4, "epochs": 3, "batch": 40, "validate": 1, "device": "cpu"}
    return Pretraining.from_dict({**values, "threads": 1, **changes})


def test_batches_of_several_stores_have_one_list_of_classes_and_one_size():
    images = ClassImages([small_store(), small_store("larger", 20, mirror=False)], ["train"])
    assert images.store.images.shape == (240, 3, 16, 16)
    assert len(images.names) == 10
    assert images.names[5] == "larger/larger-a"
    assert images.labels.bincount().tolist() == [24] * 10
    assert not images.inputs.mirror  # one of them must not be mirrored
    with pytest.raises(UsageError, match="data: ink has 1 colour channels"):
        ClassImages([small_store(), small_store("ink", channels=1)], ["train"])


def test_an_augmentation_that_does_nothing_shows_the_images():
    images = ClassImages([small_store()], ["train"])
    chosen = torch.tensor([3, 30, 60])
    plan = images.draw(chosen, Distortion(1.0, 0.0, 0.0, False), torch.Generator())
    plan.affine[..., 2] = 0  # no shift
    x, own, _, fraction = images.show(plan)
    expected = (images.store.images[chosen].float() / 255 - 0.5) / 0.2
    assert torch.allclose(x, expected, atol=1e-4)
    assert own.tolist() == [0, 1, 2]
    assert not fraction.any()


def test_crops_stay_inside_the_image_and_have_the_wanted_area():
    maps = random_crop(2000, 0.35, 84, torch.Generator().manual_seed(0))
    sides, middles = maps[:, [0, 1], [0, 1]], maps[:, :, 2]
    assert (middles.abs() + sides <= 1 + 1e-6).all()
    area = sides.prod(1)
    assert area.min() > 0.3  # a clipped side makes it a little smaller
    assert 0.6 < area.mean() < 0.7


def test_shifts_are_of_whole_pixels():
    maps = random_crop(500, 1.0, 32, torch.Generator().manual_seed(0))
    pixels = maps[:, :, 2] * 16
    assert torch.allclose(pixels, pixels.round(), atol=1e-5)
    assert pixels.round().unique().tolist() == list(range(-4, 5))


def test_a_mirrored_image_is_the_mirror_image():
    images = ClassImages([small_store()], ["train"])
    plan = images.draw(torch.arange(64), Distortion(1.0, 0.0, 0.0, True), torch.Generator().manual_seed(1))
    flipped = plan.affine[0, :, 0, 0] < 0
    assert 0 < flipped.sum() < 64
    centred = dataclasses.replace(plan, affine=plan.affine.clone())
    centred.affine[..., 2] = 0
    x = images.show(centred)[0]
    plain = next(images.plain())[:64]
    assert torch.allclose(x[flipped], plain[flipped].flip(-1), atol=1e-4)
    assert torch.allclose(x[~flipped], plain[~flipped], atol=1e-4)


def test_cutmix_replaces_the_share_it_reports():
    x = torch.arange(6.0)[:, None, None, None].expand(6, 1, 20, 20)
    boxes = random_boxes(6, 20, 1.0, torch.Generator().manual_seed(3))
    mixed, fraction = cutmix(x, boxes)
    replaced = mixed == x.roll(1, 0)
    assert torch.allclose(replaced.float().mean((1, 2, 3)), fraction)
    assert fraction.any()
    assert torch.equal(cutmix(x, random_boxes(6, 20, 0.0, torch.Generator()))[0], x)


def test_images_keep_their_mean_when_they_are_scaled():
    images = small_store("larger", 20).images[:8]
    smaller = resized(images, 16)
    assert smaller.shape == (8, 3, 16, 16)
    assert torch.allclose(smaller.float().mean((2, 3)), images.float().mean((2, 3)), atol=3)


def test_the_loss_of_mixed_images_weights_both_labels():
    logits, own, other = torch.randn(5, 4), torch.arange(5) % 4, torch.arange(1, 6) % 4
    none, all_ = torch.zeros(5), torch.ones(5)
    assert torch.allclose(mixed_cross_entropy(logits, own, other, none), F.cross_entropy(logits, own))
    assert torch.allclose(mixed_cross_entropy(logits, own, other, all_), F.cross_entropy(logits, other))


def test_distillation_is_zero_for_the_teacher_itself_and_grows_with_the_difference():
    logits = torch.randn(7, 5)
    assert distillation(logits, logits + 3, 4.0).abs() < 1e-5  # a constant changes no probability
    near, far = (distillation(logits, logits + scale * torch.randn(7, 5), 4.0) for scale in (0.1, 3))
    assert 0 < near < far


def test_four_groups_are_turned():
    x = torch.randn(8, 3, 6, 6)
    turned = turn(x)
    assert torch.equal(turned[:2], x[:2])
    assert torch.equal(turned[4:6], x[4:6].flip(2, 3))
    assert torch.equal(turned[2:4].rot90(3, (2, 3)), x[2:4])


@pytest.mark.parametrize("head", ["linear", "cosine"])
@pytest.mark.parametrize("build_network", [conv4, resnet12])
def test_a_classifier_keeps_running_statistics(head, build_network):
    model = Classifier(build_network(5, size=16, width=4), 7, head, rotation=True)
    assert model(torch.randn(4, 3, 16, 16)).shape == (4, 7)
    statistics = [n for n, _ in model.body.named_buffers() if n.endswith("running_mean")]
    assert statistics
    assert all(model.body.get_buffer(name).any() for name in statistics)
    one = torch.randn(3, 3, 16, 16)
    model.eval()
    assert torch.allclose(model.features(one)[:1], model.features(one[:1]), atol=1e-5)  # image by image


def test_resnet12_takes_widths_and_dropout():
    model = resnet12(5, size=16, widths=(4, 6, 8, 10), dropout=0.5)
    assert model[-1].in_features == 10
    x = torch.randn(2, 3, 16, 16)
    assert not torch.equal(model(x), model(x))
    assert set(model.state_dict()) == set(resnet12(5, size=16).state_dict())
    with pytest.raises(UsageError, match="widths: 2 numbers"):
        resnet12(5, widths=(4, 6))


@pytest.mark.parametrize(
    "changes",
    [{}, {"head": "cosine", "cutmix": 0.5, "crop": 1.0}, {"rotation": 0.5, "smoothing": 0.1, "jitter": 0.0}],
    ids=str,
)
def test_training_learns_to_tell_the_classes(changes):
    chosen = settings(epochs=8, rate=0.05, ema=0.9, **changes)
    fit = pretraining(chosen)
    losses = []
    while not fit.done:
        if progress := fit.advance():
            losses.append(progress.loss)
    assert losses[-1] < 0.85 * losses[0]  # means over epochs
    assert prototype_accuracy(fit.step.ema, chosen.images(["val"])) > 0.6


def test_an_epoch_shows_every_image_once_in_an_order_of_its_own():
    objective = pretraining(settings()).objective
    one, other = (
        torch.cat([objective.plan(epoch * objective.unit + i).images[0] for i in range(objective.unit)])
        for epoch in range(2)
    )
    assert len(one.unique()) == len(one) == objective.unit * objective.batch
    assert not torch.equal(one, other)


def test_bfloat16_agrees_with_float32_up_to_its_precision():
    """On a CPU the option is off; this runs what a GPU runs."""
    chosen = settings(rotation=0.5)
    losses = []
    for low in (False, True):
        fit = pretraining(chosen)
        fit.step.low_precision = low
        losses.append(torch.cat([fit.step(fit.objective.plan(i), 0.1).losses for i in range(3)]))
    assert not torch.equal(*losses)
    assert torch.allclose(*losses, rtol=0.03)


def test_the_average_follows_the_weights():
    chosen = settings(ema=0.5)
    fit = pretraining(chosen)
    step: ClassifierStep = fit.step
    before = step.ema.body.conv1.weight.clone()
    fit.advance()
    keep = 1 / 10  # a shorter memory at first
    expected = torch.lerp(step.model.body.conv1.weight, before, keep)
    assert torch.allclose(step.ema.body.conv1.weight, expected)


@pytest.mark.skipif(torch.cuda.is_available(), reason="only the interpreter runs kernels in float64")
def test_the_kernels_compute_the_same_features_and_gradients(monkeypatch):
    pytest.importorskip("triton")
    chosen = settings()
    step = pretraining(chosen).step
    model, x = step.model.double(), torch.randn(3, 3, 16, 16, dtype=torch.float64)
    assert step.fused is not None
    weights = [p for name, p in model.body.named_parameters() if not re.fullmatch(r"conv\d.bias", name)]
    from pathaware.engine.kernels import functions

    first_block, runs, found = functions.first_block, [], []
    monkeypatch.setattr(functions, "first_block", lambda *given: runs.append(1) or first_block(*given))
    for usable in (False, True):
        monkeypatch.setattr(kernels, "usable", lambda point, usable=usable: usable)
        features = step._features(model, x)
        assert len(runs) == usable  # the kernels run when they can, and only then
        found.append([features, *torch.autograd.grad(features.square().sum(), weights)])
    for expected, computed in zip(*found, strict=True):
        assert distance(computed.double(), expected.double()) < 1e-6


def test_a_resnet_runs_layer_by_layer():
    chosen = settings(model_name="resnet12", width=2)
    assert pretraining(chosen).step.fused is None


def test_statistics_are_those_of_images_without_augmentation():
    chosen = settings(cutmix=0.5, ema=0.5)
    images = chosen.images(["train"])
    fit = pretraining(chosen, images)
    fit.advance()
    model = fit.step.ema
    assert not model.body.norm1.running_mean.any()  # training keeps none
    measure_statistics(model, images)
    convolved = model.body.conv1(torch.cat(list(images.plain())))
    assert torch.allclose(model.body.norm1.running_mean, convolved.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(model.body.norm1.running_var, convolved.var((0, 2, 3)), atol=1e-5)
    assert not model.training


def test_a_pretraining_that_was_stopped_resumes_to_the_last_bit(tmp_path, monkeypatch):
    chosen = settings(cutmix=0.5, dropout=0.1, model_name="resnet12", width=2, epochs=2, head="cosine")
    whole = pretrain(chosen, tmp_path / "whole")
    real = Fit.advance

    def interrupted(self):
        progress = real(self)
        if self.iteration == 4:  # in the middle of the second epoch
            signal.raise_signal(signal.SIGTERM)
        return progress

    monkeypatch.setattr(Fit, "advance", interrupted)
    with pytest.raises(Stopped):
        pretrain(chosen, tmp_path / "stopped")
    monkeypatch.setattr(Fit, "advance", real)
    assert not PretrainRun.open(tmp_path / "stopped").finished
    resumed = pretrain(chosen, tmp_path / "stopped", resume=True)
    assert resumed.finished
    one, other = whole.load().model.state_dict(), resumed.load().model.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    timeless = [[{**row, "seconds": 0} for row in run.metrics()] for run in (whole, resumed)]
    assert timeless[0] == timeless[1]
    assert pretrain(chosen, tmp_path / "stopped", resume=True).finished  # and now it does nothing


def test_a_pretraining_that_another_process_finished_after_it_was_opened_is_left_as_it_is(tmp_path):
    chosen = settings(epochs=1)
    run = pretrain(chosen, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in run.folder.iterdir()}
    run_to_end([Fit(Supervised(chosen, chosen.images(["train"])), run)])
    assert {path.name: path.read_bytes() for path in run.folder.iterdir()} == before


def test_a_checkpoint_is_the_best_by_validation_or_the_last_one(tmp_path):
    chosen = pretrain(settings(), tmp_path / "best")
    values = [row["validation"] for row in chosen.metrics()]
    found = chosen.load()
    assert found.accuracy == max(values)
    assert found.epoch == values.index(max(values)) + 1
    last = pretrain(settings(splits="train,val", epochs=1), tmp_path / "last").load()
    assert (last.epoch, last.accuracy, len(last.classes)) == (1, None, 8)


def test_a_student_learns_from_a_teacher_of_the_same_classes(tmp_path):
    pretrain(settings(epochs=1), tmp_path / "teacher")
    plain = pretrain(settings(epochs=1), tmp_path / "plain")
    taught = pretrain(settings(epochs=1, teacher=str(tmp_path / "teacher")), tmp_path / "taught")
    assert next(plain.metrics())["loss"] != next(taught.metrics())["loss"]
    with pytest.raises(UsageError, match="other classes"):
        pretrain(settings(teacher=str(tmp_path / "teacher"), splits="train,val"), tmp_path / "x")


def test_the_directions_of_a_classifier_leave_out_features_that_it_does_not_use():
    random = torch.Generator().manual_seed(0)
    own = torch.eye(5).repeat_interleave(30, 0) + 0.3 * torch.randn(150, 5, generator=random)
    features = torch.cat([own, 2 * torch.randn(150, 40, generator=random)], 1)
    classifier = F.pad(torch.eye(5), (0, 40))
    counts = torch.full((5,), 30)
    projected = features @ directions(classifier).T
    assert separation(projected, counts, shots=1) > 0.8 > 0.5 > separation(features, counts, shots=1)
    assert separation(projected, counts) > separation(projected, counts, shots=1)


def test_pretrainings_are_compared_by_what_differs(tmp_path, capsys):
    for name, changes in {"plain": {"crop": 1.0}, "mixed": {"crop": 0.6, "cutmix": 0.5}}.items():
        pretrain(settings(epochs=1, **changes), tmp_path / name)
    record = tmp_path / "record.json"
    study.main([str(tmp_path / "plain"), str(tmp_path / "mixed"), "--record", str(record)])
    shown = capsys.readouterr().out
    assert "| shifts, batches of 40 | 1 | 1 |" in shown
    assert "| crops from 0.6, CutMix, batches of 40 | 1 | 1 |" in shown
    rows = {row["name"]: row for row in json.loads(record.read_text())["rows"]}
    accuracy = PretrainRun.open(tmp_path / "plain").load().accuracy
    assert rows["plain"]["all"]["5"] == pytest.approx(accuracy, abs=1e-6)
    assert 0.3 < rows["plain"]["projected"]["1"] <= 1


def test_stored_predictions_of_a_teacher_are_those_of_its_mean_view(tmp_path):
    teacher = pretrain(settings(epochs=1), tmp_path / "teacher").load().model
    images = settings().images(["train"])
    model = initialised(settings(), 5, images.inputs)
    step = ClassifierStep(model, images, settings(teacher_views=200), teacher)
    view = images.draw(torch.arange(len(images)), Distortion(0.35, 0.4, 0.0, True), generator(1, "view"))
    with torch.no_grad():
        live = teacher(images.show(view)[0])
        one = ClassifierStep(step.model, images, settings(teacher_views=1), teacher).stored
    # The views of one image differ more than the means of many do.
    assert step.stored is not None
    assert one is not None
    assert (live - step.stored.logits).norm() < 0.8 * (live - one.logits).norm()
    seen = []
    hook = teacher.head.register_forward_hook(lambda *_: seen.append(1))
    plan = images.draw(torch.arange(40), Distortion(0.35, 0.4, 0.5, True), generator(2, "batch"))
    assert step.run(plan).losses.isfinite().all()
    assert not seen
    hook.remove()


def test_a_time_is_turned_into_epochs(tmp_path):
    run = pretrain(settings(), tmp_path / "run", minutes=1 / 120)
    assert run.settings.epochs >= 1
    assert PretrainRun.open(run.folder).settings == run.settings


@pytest.fixture(scope="module")
def ink(tmp_path_factory) -> PretrainRun:
    """A pretraining on images like glyphs."""
    torch.set_default_dtype(torch.float32)
    store = small_store("ink", 28, channels=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalogue, "open_store", lambda name, directory: store)
        chosen = settings(data="ink", width=8, size=28, epochs=1)
        return pretrain(chosen, tmp_path_factory.mktemp("ink") / "features")


def test_meta_training_starts_from_a_pretraining(ink, tmp_path):
    run, folder = ink, ink.folder
    plain, started = build(config()).model, in_memory(config(start=str(folder))).objective.learner.model
    learned = run.load().body
    assert torch.equal(started.conv4.weight, learned.conv4.weight)
    assert torch.equal(started.norm2.bias, learned.norm2.bias)
    assert torch.equal(started.head.weight, plain.head.weight)
    classifier = torch.nn.functional.normalize(run.load().model.head.weight, dim=1)
    projection = in_memory(config(start=str(folder), head="projected")).objective.learner.start.projection
    assert torch.allclose(projection @ projection.T, torch.eye(len(projection)), atol=1e-5)
    assert torch.allclose(classifier @ projection.T @ projection, classifier, atol=1e-5)
    with pytest.raises(UsageError, match=r"start: .* is of another network"):
        in_memory(config({"width": 6}, start=str(folder)))
    with pytest.raises(UsageError, match="has no checkpoint"):
        in_memory(config(start=str(tmp_path)))
    with pytest.raises(UsageError, match="holds a pretraining"):
        Run.open(folder)


def test_running_statistics_without_biases_are_the_same_network(ink):
    body = ink.load().body.eval().double()
    learner = build(config({"statistics": "running"}, start=str(ink.folder)))
    start_from(learner, ink.folder)
    model = learner.model
    model.head = torch.nn.Identity()
    images = torch.rand(6, 1, 28, 28, dtype=torch.float64)
    assert torch.allclose(model.double()(images), body(images), atol=1e-5)
    assert not any(name.startswith("conv") and name.endswith("bias") for name, _ in model.named_parameters())


def test_parameters_of_another_network_are_refused_in_one_line():
    model = conv4(3, size=16, width=4, blocks=2)
    biased = model.state_dict()
    del biased["conv2.bias"]
    with pytest.raises(
        UsageError, match=r"^run: x is of another network than .* \(conv2.bias differs\); train again$"
    ):
        load_parameters(model, biased, "x")
    narrow = conv4(3, size=16, width=5, blocks=2).state_dict()
    with pytest.raises(UsageError, match=r"\(conv1.weight differs\)"):
        load_parameters(model, narrow, "x")


@pytest.mark.parametrize("method", ["pamela", "prototypical"])
def test_running_statistics_of_a_pretraining_make_queries_independent(ink, method):
    chosen = config({"statistics": "running"}, start=str(ink.folder), dtype="float64")
    fit = in_memory(dataclasses.replace(chosen, method=method, method_settings={}))
    fit.advance()
    learner = fit.objective.learner.eval()
    body = ink.load().body.eval().double()
    assert torch.equal(learner.model.norm2.running_var, body.norm2.running_var)
    assert learner.model.conv2.bias is None  # the mean contains it
    assert torch.allclose(learner.model.norm2.running_mean, body.norm2.running_mean - body.conv2.bias)
    episodes = fit.objective.source.gather(fit.objective.source.draw(2, generator(0, "t", 0)))
    support = episodes.support_x, episodes.support_y
    with torch.no_grad():
        together = learner.predictions_per_step(*support, episodes.query_x).outputs[-1]
        alone = learner.predictions_per_step(*support, episodes.query_x[:, :1]).outputs[-1]
    assert torch.allclose(together[:, :1], alone, atol=1e-12)
    result = evaluate(learner, chosen.problem, tasks=2, split="val")
    assert result.queries == own_level(chosen) == "alone"
    with pytest.raises(UsageError, match="statistics: running ones come from a pretraining"):
        config({"statistics": "running"})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"crop": 0}, "crop: 0.0 is not allowed; must be a positive number"),
        ({"cutmix": 2}, "cutmix: 2.0 is not allowed; must be 0 to 1"),
        ({"splits": "test"}, "splits: 'test' must be one of train, train,val"),
        ({"warmup": 3}, "warmup: 3 is not allowed; must be fewer than 3 epochs"),
        ({"epoch": 3}, r"epoch: \[pretraining\] has no such setting.*did you mean epochs"),
    ],
)
def test_settings_that_cannot_be_used(wrong, message):
    with pytest.raises(UsageError, match=message):
        settings(**wrong)


def test_the_command_trains_and_prints_json(tmp_path):
    words = ["pretrain", "shapes", "--width", "4", "--epochs", "1", "--json", "--set", "batch=40"]
    printed = json.loads(done(*words, "--device", "cpu", "--out", tmp_path / "run"))
    assert printed["classes"] == 5
    assert printed["checkpoint_epoch"] == 1
    assert 0 <= printed["prototype_accuracy"] <= 1
    assert PretrainRun.open(tmp_path / "run").settings.width == 4


def test_the_number_of_epochs_fits_the_time(monkeypatch):
    """A clock that counts steps: each takes a second."""
    chosen = settings()
    images = chosen.images(["train"])
    ticks = iter(range(10_000))
    monkeypatch.setattr(supervised.time, "perf_counter", lambda: float(next(ticks)))
    found = supervised.epochs_in(600.0, chosen, images)
    assert found == pytest.approx(0.95 * 600 / (3 * 22 / 20), abs=60)
