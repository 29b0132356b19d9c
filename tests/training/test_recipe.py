"""Losses beside the query loss, learning rates of their own, and snapshots."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pathaware import UsageError
from pathaware.core.meta_gradient import Unrolled
from pathaware.core.seeding import generator
from pathaware.training.config import Config
from pathaware.training.evaluation import SnapshotMean, evaluate
from pathaware.training.fitting import learning_rate
from pathaware.training.meta_training import MetaTraining, build
from pathaware.training.problems import Classification
from pathaware.training.recipe import MixedQueries, active_dropout, teacher_logits
from pathaware.training.run_files import numbered_files
from pathaware.training.supervised import pretrain
from pathaware.training.train import train
from tests.training.fits import continued, in_memory
from tests.training.test_classifier import settings as pretraining
from tests.training.test_classifier import small_store

STORE = small_store()
ALL = {"average": 0.9, "distil": 0.3, "classify": 0.5, "classify_end": 0.1, "rule_rate": 0.01, "warmup": 3}


@pytest.fixture(autouse=True)
def _small_images(monkeypatch):
    monkeypatch.setattr(Classification, "_store", lambda self: STORE)
    monkeypatch.setattr("pathaware.data.catalogue.open_store", lambda name, directory: STORE)


def config(method: str = "pamela", problem: dict | None = None, options: dict | None = None, **training):
    images = {"name": "classification", "data": "shapes", "ways": 3, "shots": 1, "queries": 2, "width": 4}
    settings = {"iterations": 6, "tasks": 2, "validate": 0, "device": "cpu", "threads": 1}
    return Config.from_dict(
        {
            "problem": {**images, **(problem or {})},
            "method": {"name": method, **(options or {})},
            "training": {**settings, **training},
        }
    )


def step_of(settings: Config):
    return MetaTraining(settings).prepare(new=False)


def gradients(settings: Config, **changes) -> dict[str, torch.Tensor]:
    step = step_of(settings)
    for name, value in changes.items():
        setattr(step, name, value)
    step(step.source.draw(settings.training.tasks, generator(0, "test")), 0.0)
    return {name: p.grad.clone() for name, p in step.learner.named_parameters() if p.grad is not None}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], tolerance: float = 1e-10) -> bool:
    return all(torch.allclose(one[name], other[name], atol=tolerance, rtol=1e-7) for name in one)


@pytest.mark.parametrize("method", ["pamela", "maml", "fomaml", "prototypical", "r2d2"])
def test_without_weights_the_losses_beside_change_no_gradient(method):
    plain, recipe = (gradients(config(method, dtype="float64", **c)) for c in ({}, {"average": 0.9}))
    assert set(plain) == set(recipe)
    assert equal(plain, recipe)


@pytest.mark.parametrize("problem", [{}, {"cutmix": 0.7}], ids=str)
def test_chunks_of_tasks_change_no_gradient(problem):
    settings = config(dtype="float64", problem=problem, **ALL)
    assert equal(gradients(settings), gradients(settings, chunk=1))


def test_theta_and_phi_have_learning_rates_of_their_own():
    step = step_of(config(rule_rate=0.02))
    before = {name: p.detach().clone() for name, p in step.learner.named_parameters()}
    step(step.source.draw(2, generator(0, "test")), 1e-3)
    moved = {n: (p - before[n]).abs().max().item() for n, p in step.learner.named_parameters()}
    assert moved["model.conv1.weight"] == pytest.approx(1e-3, rel=1e-3)  # Adam's first step is the rate
    assert moved["rule.q"] == pytest.approx(0.02, rel=1e-3)


def test_learning_rates_grow_at_first():
    training = config(iterations=100, warmup=10, schedule="constant", rate=0.1).training
    rates = [learning_rate(training, i) for i in (0, 4, 9, 50)]
    assert rates == pytest.approx([0.01, 0.05, 0.1, 0.1])


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("pamela", {}),
        ("pamela", {"q_granularity": "tensor-channel"}),
        ("meta-sgd", {}),
        ("maml++", {}),
        ("alfa", {}),
    ],
    ids=str,
)
def test_the_last_layer_may_begin_with_larger_steps(method, options):
    learner = build(config(method, options=options, head_rate=0.3))
    rule = learner.rule
    ((name, sizes),) = ((n, c) for n, c in rule.coefficients().items() if c.step_size is not None)
    groups = sizes.groups or nn.Identity()
    flat = sizes.step_size * groups(getattr(rule, name)).reshape(-1, len(rule.layout))
    for name, part in rule.layout.views(flat).items():
        expected = 0.3 if name.startswith("head.") else 0.01
        assert torch.allclose(part, torch.full_like(part, expected)), name


@pytest.mark.parametrize(("method", "options"), [("maml", {}), ("maml++", {"learned_rates": False})], ids=str)
def test_a_method_without_learned_step_sizes_has_none_to_set(method, options):
    with pytest.raises(UsageError, match="head_rate: the method learns no step sizes"):
        build(config(method, options=options, head_rate=0.3))


def test_the_average_follows_the_learner():
    settings = config(average=0.75)
    fit = in_memory(settings)
    recipe = fit.step.recipe
    before = {name: p.clone() for name, p in recipe.average.named_parameters()}
    fit.advance()
    for name, parameter in fit.objective.learner.named_parameters():
        expected = torch.lerp(before[name], parameter.detach(), 0.25)
        assert torch.allclose(recipe.average.get_parameter(name), expected)
    assert fit.objective.evaluated is fit.objective.learner
    other = in_memory(config(average=0.75, evaluate_average=True)).objective
    assert other.evaluated is not other.learner


def test_the_loss_with_an_average_is_that_of_its_formula():
    settings = config(dtype="float64", average=0.9, distil=0.4, temperature=3.0)
    step = step_of(settings)
    with torch.no_grad():
        for parameter in step.recipe.average.parameters():
            parameter.mul_(1.1)
    episodes = step.source.sample(2, generator(0, "test"))
    found = step.recipe.losses(step.learner, episodes, "second")
    x, y, queries, _ = episodes.tensors()
    student = step.learner.adapted(x, y, query_x=queries, order="second").outputs(queries)
    teacher = step.recipe.average.adapted(x, y, query_x=queries).outputs(queries)
    for task in range(2):
        plain = F.cross_entropy(student[task], episodes.query_y[task])
        p, q = (logits[task].div(3.0).softmax(-1) for logits in (teacher, student))
        divergence = (p * (p / q).log()).sum(-1).mean()
        assert torch.allclose(found[task], 0.6 * plain + 0.4 * 9 * divergence)


def test_queries_are_mixed_with_others_of_their_task():
    source = config(problem={"cutmix": 1.0}).problem.tasks("train", "cpu", torch.float32)
    plan = source.draw(2, generator(0, "test"))
    assert plan.boxes.shape == (2, 6, 4)
    episodes = source.gather(plan)
    mixed = MixedQueries(episodes)
    before = episodes.query_x.roll(1, 1)
    own, other = (mixed.x == episodes.query_x).all(2), (mixed.x == before).all(2)
    assert (own | other).all()
    assert mixed.share.any()
    values = torch.arange(6.0).expand(2, 6)[..., None]
    expected = (1 - mixed.share) * values[..., 0] + mixed.share * values.roll(1, 1)[..., 0]
    assert torch.allclose(mixed.mixed(values)[..., 0], expected)
    logits = torch.randn(2, 6, 3)
    y = episodes.query_y
    own, other = (F.cross_entropy(logits[0], labels[0], reduction="none") for labels in (y, y.roll(1, 1)))
    assert torch.allclose(mixed.cross_entropy(logits, y)[0], torch.lerp(own, other, mixed.share[0]).mean())


def test_mixing_draws_the_same_tasks_as_before():
    one, other = (
        config(problem=p).problem.tasks("train", "cpu", torch.float32).draw(3, generator(0, "x"))
        for p in ({}, {"cutmix": 0.5})
    )
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.labels, other.labels)


def test_training_classes_are_learned_beside_the_tasks():
    settings = config(iterations=20, classify=1.0, classify_end=0.5, rate=5e-3)
    fit = in_memory(settings)
    recipe = fit.step.recipe
    assert recipe.classifier.out_features == 5
    episodes = fit.objective.source.sample(4, generator(0, "test"))

    def of_all_classes() -> float:
        with torch.no_grad():
            return recipe._all_classes(fit.objective.learner, MixedQueries(episodes), episodes).mean().item()

    before = of_all_classes()
    while not fit.done:
        fit.advance()
    assert of_all_classes() < before - 0.1
    assert recipe.classify.item() == pytest.approx(1 - 0.5 * 19 / 20)
    assert "classifier" not in " ".join(fit.objective.evaluated.state_dict())


def test_all_classes_are_told_from_the_same_features_whatever_adapts():
    steps = [step_of(config(method, dtype="float64", classify=1.0)) for method in ("maml", "prototypical")]
    episodes = steps[0].source.sample(2, generator(0, "test"))
    one, other = (s.recipe._all_classes(s.learner, MixedQueries(episodes), episodes) for s in steps)
    assert torch.allclose(one, other, atol=1e-10)
    for step, losses in zip(steps, (one, other), strict=True):
        losses.sum().backward()
        assert step.learner.model.conv1.weight.grad.abs().max() > 0
    assert equal(*({"conv1": step.learner.model.conv1.weight.grad} for step in steps))


def test_a_stored_teacher_speaks_of_the_classes_of_the_task(tmp_path):
    folder = tmp_path / "teacher"
    settings = {"epochs": 12, "rate": 0.05, "ema": 0.5, "crop": 1.0, "jitter": 0.0, "validate": 0}
    pretrain(pretraining(**settings), folder)
    taught = teacher_logits(folder, STORE, torch.device("cpu"))
    assert taught.shape == (len(STORE), 5)
    classes = torch.arange(5).repeat_interleave(24)
    assert (taught[:120].argmax(1) == classes).double().mean() > 0.6
    settings = config(teacher=str(folder), teach=0.5)
    step = step_of(settings)
    episodes = step.source.sample(3, generator(0, "test"))
    found = step.recipe._taught(episodes, 3)
    assert found.shape == (3, 6, 3)
    assert (found.argmax(-1) == episodes.query_y).double().mean() > 0.6
    assert not equal(gradients(settings), gradients(config()), 1e-6)


def test_a_teacher_of_other_classes_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "teacher"
    other = small_store("others")
    monkeypatch.setattr("pathaware.data.catalogue.open_store", lambda name, directory: other)
    pretrain(pretraining(epochs=1), folder)
    with pytest.raises(UsageError, match=r"teacher: .* was not trained on shapes/shapes-a"):
        step_of(config(teacher=str(folder)))


def test_dropout_acts_on_queries_in_training_only():
    settings = config(dropout=0.5)
    step = step_of(settings)
    learner, episodes = step.learner, step.source.sample(2, generator(0, "test"))
    with torch.no_grad():
        adapted = learner.adapted(episodes.support_x, episodes.support_y)
        quiet = [adapted.outputs(episodes.query_x) for _ in range(2)]
        with active_dropout(learner.model):
            noisy = [adapted.outputs(episodes.query_x) for _ in range(2)]
    assert torch.equal(*quiet)
    assert not torch.equal(*noisy)
    plain = build(config())
    assert set(step.learner.state_dict()) == set(plain.state_dict())
    assert not any(isinstance(module, nn.Dropout) and module.training for module in step.learner.modules())
    examples = episodes.tensors()[:3]
    with torch.no_grad():
        one, other = (each.predictions_per_step(*examples).outputs[-1] for each in (step.learner, plain))
    assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_a_run_with_all_of_them_resumes_to_the_last_bit(tmp_path, statistics):
    pretrain(pretraining(epochs=1), tmp_path / "teacher")
    more = {"dropout": 0.2, "teacher": str(tmp_path / "teacher"), "start": str(tmp_path / "teacher")}
    problem = {"cutmix": 0.5, "mirror_support": True, "statistics": statistics}
    settings = config(problem=problem, **ALL, **more)
    whole, stopped = in_memory(settings), in_memory(settings)
    for _ in range(3):
        stopped.advance()
    with continued(stopped, tmp_path / "run") as resumed:
        assert resumed.iteration == 3
        for fit in (whole, resumed):
            while not fit.done:
                fit.advance()
    assert whole.objective.kept.keys() == {"learner", "extra"}
    for part, module in whole.objective.kept.items():
        first, second = module.state_dict(), resumed.objective.kept[part].state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("method", ["reptile", "siamese", "metal", "maml++"])
def test_methods_with_an_outer_loss_of_their_own_are_refused(method):
    with pytest.raises(UsageError, match="on classification has another outer loss"):
        MetaTraining(config(method, average=0.9)).try_out()


def test_regression_has_no_recipe():
    tables = {"problem": {"name": "sine"}, "method": {"name": "maml"}, "training": {"average": 0.9}}
    with pytest.raises(UsageError, match="maml on sine has another outer loss"):
        MetaTraining(Config.from_dict(tables)).try_out()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"distil": 0.5}, "average: 0 is not allowed with distil"),
        ({"evaluate_average": True}, "average: 0 is not allowed with distil or evaluate_average"),
        ({"average": 2.0}, "average: 2.0 is not allowed; must be 0 to 1"),
        ({"average": 0.9, "distil": 0.8, "teacher": "x"}, "distil: 0.8 and teach 0.3 are more than 1"),
        ({"temperature": 0}, "temperature: 0.0 is not allowed; must be a positive number"),
        ({"snapshots": 3}, "snapshots: they are chosen by validation"),
    ],
)
def test_settings_that_contradict_each_other(wrong, message):
    with pytest.raises(UsageError, match=message):
        config(**wrong)


def test_support_sets_are_mirrored_in_training_only():
    problem = config(problem={"mirror_support": True}).problem
    train, validation = (
        problem.tasks(split, "cpu", torch.float32).sample(2, generator(0, "x")) for split in ("train", "val")
    )
    assert train.support_x.shape[1] == 6
    assert torch.equal(train.support_x[:, 3:], train.support_x[:, :3].flip(-1))
    assert torch.equal(train.support_y[:, 3:], train.support_y[:, :3])
    assert validation.support_x.shape[1] == 3


def test_characters_are_not_mirrored(monkeypatch):
    monkeypatch.setattr(Classification, "_store", lambda self: small_store("ink", mirror=False))
    with pytest.raises(UsageError, match="mirror_support: the images of ink must not be mirrored"):
        config(problem={"mirror_support": True}).problem.tasks("train", "cpu", torch.float32)


def test_the_best_snapshots_are_kept_and_averaged(tmp_path):
    settings = config(validate=1, validation_tasks=4, snapshots=3, rate=0.01)
    run = train(settings, tmp_path / "run")
    values = {row["iteration"]: row["validation"] for row in run.metrics()}
    kept = [int(path.stem.partition("-")[2]) for path in numbered_files(run.folder, "snapshot")]
    assert len(kept) == 3
    assert min(values[i] for i in kept) >= sorted(values.values())[-3]
    learners = run.load_snapshots("cpu")
    episodes = settings.problem.tasks("val", "cpu", torch.float32)
    examples = episodes.sample(2, generator(0, "x")).tensors()[:3]
    with torch.no_grad():
        mean = SnapshotMean(learners).predictions_per_step(*examples).outputs[-1].exp()
        each = [one.predictions_per_step(*examples).outputs[-1].softmax(-1) for one in learners]
    assert torch.allclose(mean, torch.stack(each).mean(0), atol=1e-6)
    result = evaluate(SnapshotMean(learners), settings.problem, split="val", tasks=3, views="mirror")
    assert result.values.shape == (3, 6)
    assert result.snapshots == 3


def test_the_recipe_leaves_the_estimator_of_other_runs_alone():
    assert isinstance(step_of(config()).estimator, Unrolled)
    assert step_of(config()).recipe is None
    assert dataclasses.asdict(config().training)["average"] == 0.0
