"""Tasks of features: the same as those of images, cached, and of different sizes."""

from __future__ import annotations

import pytest
import torch

from pathaware import UsageError
from pathaware.core.few_shot import part_of
from pathaware.core.seeding import generator
from pathaware.data import open_store
from pathaware.data.episodes import ImageEpisodes
from pathaware.data.unbalanced import UnbalancedQueries, VaryingTasks
from pathaware.models.backbones import FrozenBackbone
from pathaware.training import features
from pathaware.training.config import Config
from pathaware.training.features import FeatureBaseline, FeatureMemory, cache_dir, feature_tasks
from pathaware.training.meta_training import build
from pathaware_research.experiments import own_level
from tests.models.residual18 import pretrained
from tests.training.fits import in_memory


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PATHAWARE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def config(tmp_path) -> Config:
    torch.save(pretrained(10).state_dict(), tmp_path / "weights.pt")
    problem = {
        "name": "classification",
        "model_name": "tests.models.residual18:resnet18",
        "weights": str(tmp_path / "weights.pt"),
        "adapt": "head",
        "ways": 4,
        "shots": 3,
        "queries": 2,
    }
    training = {"iterations": 3, "tasks": 2, "device": "cpu", "validate": 0}
    return Config.from_dict({"problem": problem, "method": {"name": "proto-pamela"}, "training": training})


def test_pretrained_weights_have_constant_statistics(config):
    assert build(config).query_level(None) == own_level(config) == "alone"


def small(split: str = "test", **options) -> ImageEpisodes:
    return ImageEpisodes(open_store("glyphs"), split, 4, 3, 2, **options)


@pytest.fixture
def few_images(monkeypatch):
    """Embedding all glyphs would take long; the first six classes of each split will do."""
    store = open_store("glyphs")
    whole = type(store).split

    def split(self, name):
        found = whole(self, name)
        return type(found)(found.names[:6], found.starts[:6], found.counts[:6])

    monkeypatch.setattr(type(store), "split", split)


@pytest.mark.usefixtures("few_images")
def test_features_are_those_of_the_same_images_and_are_computed_once(config, monkeypatch):
    learner = build(config)
    backbone = part_of(learner.model, FrozenBackbone)
    for wrap in (lambda source: source, UnbalancedQueries):
        images = wrap(small()).sample(3, generator(0, "tasks"))
        found = feature_tasks(wrap(small()), learner).sample(3, generator(0, "tasks"))
        assert torch.equal(found.support_y, images.support_y)
        assert torch.equal(found.query_y, images.query_y)
        with torch.no_grad():
            expected = backbone(images.query_x.flatten(0, 1))
        assert torch.allclose(found.query_x.flatten(0, 1), expected, atol=2e-3)
    assert len(list(cache_dir().rglob("*.safetensors"))) == 1
    monkeypatch.setattr(features, "_embedded", None)  # the cache has all that is needed
    feature_tasks(small(), learner)
    with torch.no_grad():
        next(backbone.parameters()).add_(1e-3)
    with pytest.raises(TypeError):  # another backbone has other features
        feature_tasks(small(), learner)


@pytest.mark.usefixtures("few_images")
def test_a_damaged_cache_is_computed_again(config):
    learner = build(config)
    first = feature_tasks(small(), learner).sample(2, generator(0, "tasks"))
    (path,) = cache_dir().rglob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-8] + b"damaged!")
    again = feature_tasks(small(), learner).sample(2, generator(0, "tasks"))
    assert torch.equal(again.support_x, first.support_x)


@pytest.mark.usefixtures("few_images")
def test_training_on_features_takes_statistics_and_leaves_the_backbone_alone(config):
    fit = in_memory(config)
    head = fit.objective.learner.head
    assert not torch.equal(head.axes, torch.eye(head.features))
    assert head.spread.mean().item() == pytest.approx(1, abs=1e-4)
    before = {name: value.clone() for name, value in fit.objective.learner.state_dict().items()}
    while not fit.done:
        fit.advance()
    after = fit.objective.learner.state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed
    assert all(name.startswith("head.") for name in changed)


@pytest.mark.usefixtures("few_images")
def test_mirrored_support_is_the_mean_of_both_views(config):
    learner = build(config)
    backbone = part_of(learner.model, FrozenBackbone)
    images = small().sample(2, generator(0, "tasks"))
    found = feature_tasks(small(), learner, mirror_support=True).sample(2, generator(0, "tasks"))
    x = images.support_x.flatten(0, 1)
    with torch.no_grad():
        expected = (backbone(x) + backbone(x.flip(-1))) / 2
    assert torch.allclose(found.support_x.flatten(0, 1), expected, atol=2e-3)
    pixels = open_store("glyphs").images[:3]
    memory = FeatureMemory(backbone, lambda p: p.float())
    with torch.no_grad():
        both = (backbone(pixels.float()) + backbone(pixels.flip(-1).float())) / 2
    assert torch.allclose(memory.support(pixels, mirrored=True), both, atol=1e-4)


def test_the_memory_forgets_the_oldest(config):
    backbone = part_of(build(config).model, FrozenBackbone)
    memory = FeatureMemory(backbone, lambda p: p.float(), most=2)
    pixels = open_store("glyphs").images[:3]
    assert torch.allclose(memory(pixels[[0, 1, 0]])[0], memory(pixels[:1])[0])
    memory(pixels[2:])
    assert len(memory._known) == 2


def test_varying_tasks_keep_what_they_promise():
    source = VaryingTasks(small("train", shuffle=False))
    plan = source.draw(200, generator(0, "varying"))
    assert set((plan.counts > 0).sum(1).tolist()) == {2, 3, 4}
    assert plan.counts.max() == 3
    balanced = torch.tensor([len(set(row[row > 0].tolist())) == 1 for row in plan.counts])
    assert 0.4 < balanced.double().mean() < 0.9
    episodes = source.gather(plan)
    counted = torch.stack([(episodes.support_y == k).sum(1) for k in range(4)], 1)
    assert torch.equal(counted, plan.counts)
    assert episodes.query_y.shape == (200, 4)
    assert (plan.counts.gather(1, episodes.query_y) > 0).all()
    part = source.gather(plan[3:5])
    size = part.support_y.shape[1]
    assert torch.equal(part.query_y, episodes.query_y[3:5])
    assert torch.equal(part.support_y, episodes.support_y[3:5, :size])
    with pytest.raises(ValueError, match="shot by shot"):
        VaryingTasks(small())


@pytest.mark.parametrize("kind", ["nearest-mean", "logistic"])
@pytest.mark.parametrize("ways", [2, 3])
def test_baselines_separate_what_is_separate(config, kind, ways):
    baseline = FeatureBaseline(build(config), kind)
    torch.manual_seed(0)
    centres = torch.eye(baseline.model.features)[:ways]
    y = torch.arange(ways).repeat(4)
    x = centres[y] + 0.1 * torch.randn(4 * ways, centres.shape[1])
    network = baseline.adapt(x, y)
    assert torch.equal(network(x).argmax(1), y)
    after = baseline.predictions_per_step(x[None], y[None], x[None]).outputs[-1][0]
    assert torch.allclose(network(x), after, atol=1e-5)


def test_a_weaker_penalty_gives_larger_weights(config):
    torch.manual_seed(0)
    learner, y = build(config), torch.arange(3).repeat(4)
    x = torch.randn(12, FeatureBaseline(learner, "logistic").model.features)
    size = {c: FeatureBaseline(learner, "logistic", penalty=c).rows(x, y)[0].norm() for c in (0.1, 1.0, 10.0)}
    assert size[0.1] < size[1.0] < size[10.0]
    assert torch.equal(FeatureBaseline(learner, "logistic").rows(x, y)[0].norm(), size[1.0])


def test_tasks_without_labels_have_no_features(config):
    with pytest.raises(UsageError, match="labelled images"):
        feature_tasks(object(), build(config))
