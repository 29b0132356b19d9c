"""MT-net: MAML in a learned metric and a learned subspace."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from pathaware import Episodes, GradientDescent, Layout, MetaLearner, UsageError
from pathaware.methods import get_method
from pathaware.training.config import Config
from pathaware.training.trainer import train
from tests.conftest import distance, small_problem
from tests.methods.checks import differences, estimated, learner_of, scattered


def frozen(learner, monkeypatch, seed=7):
    """Make the learner draw the same mask every time."""
    rand = torch.rand

    def same(shape, **options):
        return rand(shape, generator=torch.Generator().manual_seed(seed), **options)

    monkeypatch.setattr("pathaware.methods.mt_net.torch.rand", same)
    return learner


def always(learner):
    """Make every row of the learner adapt."""
    with torch.no_grad():
        learner.rule.logits.fill_(100.0)
    return learner


@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_with_identities_and_full_masks_it_is_maml(kind):
    learner, outer, episodes = learner_of("mt-net", kind, rate=0.1)
    estimated(always(learner), outer, episodes)
    plain = nn.Sequential()
    for name, child in learner.model.named_children():
        if name not in {f"t{i}" for i in range(1, 9)}:
            plain.add_module(name, copy.deepcopy(child))
    layout = Layout.of(plain, adapted=lambda name: "norm" not in name)
    maml = MetaLearner(plain, GradientDescent(layout, 5, rate=0.1), learner.loss)
    estimated(maml, outer, episodes)
    ours, theirs = (m.path(episodes.support_x, episodes.support_y) for m in (learner, maml))
    assert distance(ours.end, theirs.end) < 1e-10
    assert distance(ours.end, theirs.points[0]) > 1e-3
    for name, parameter in plain.named_parameters():
        if not name.startswith("conv") or name.endswith("weight"):  # a bias ahead of batch norm has none
            assert distance(learner.model.get_parameter(name).grad, parameter.grad) < 1e-10, name


@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_its_meta_gradient_equals_finite_differences_for_a_fixed_draw(kind, monkeypatch):
    """Including the transformations and ζ. For ζ the drawn mask is replaced by one that is smooth in ζ and
    equal at this point: the drawn mask plus the change of its relaxation."""
    learner, outer, episodes = learner_of("mt-net", kind, rate=0.1, temperature=0.7, steps=2)
    frozen(scattered(learner), monkeypatch)
    found = estimated(learner, outer, episodes)
    rule = learner.rule

    def relaxed(logits):
        uniform = torch.rand(logits.shape)
        odds = (logits.exp() * uniform / (1 - uniform)) ** (1 / 0.7)
        return odds / (1 + odds)

    here = relaxed(rule.logits.detach().expand(len(episodes), -1))
    drawn = here.round()
    assert 0 < drawn.mean() < 1
    rule.sample = lambda logits: drawn + relaxed(logits) - here
    gradients, chosen = differences(learner, lambda: learner.meta_loss(episodes, "first"), most=80)
    assert distance(found[chosen], gradients) < 1e-6
    sizes = {n: p.grad.norm() for n, p in learner.named_parameters() if not n.endswith("bias")}
    assert all(size > 1e-6 for size in sizes.values()), sizes


@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_rows_that_are_masked_stay_and_all_others_move(kind, monkeypatch):
    learner, _, episodes = learner_of("mt-net", kind, rate=0.1)
    scattered(learner)
    masks = []
    sample = learner.rule.sample
    monkeypatch.setattr(learner.rule, "sample", lambda logits: masks.append(sample(logits)) or masks[-1])
    path = learner.path(episodes.support_x, episodes.support_y, order="first")
    (mask,) = masks  # one draw for the whole path
    before, after = path.parameters(0), path.parameters(-1)
    count = 0
    layers = [name.removesuffix(".weight") for name in before if name.endswith("weight")]
    for layer in layers:
        units = before[f"{layer}.bias"].shape[1]
        own = mask[:, count : count + units].detach()
        count += units
        moved = {part: after[f"{layer}.{part}"] != before[f"{layer}.{part}"] for part in ("weight", "bias")}
        assert not moved["weight"][own == 0].any()
        assert not moved["bias"][own == 0].any()
        if "conv" in layer or layer == layers[-1]:  # hidden units may be dead, and have no gradient
            assert moved["weight"][own == 1].flatten(1).any(1).all()
    assert count == mask.shape[1]
    assert not torch.equal(mask[0], mask[1])


def test_transformations_and_norms_do_not_adapt_but_learn():
    learner, outer, episodes = learner_of("mt-net", rate=0.1)
    adapted = {entry.name for entry in learner.rule.layout.entries}
    layers = ("conv1", "conv2", "head")
    assert adapted == {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    estimated(scattered(learner), outer, episodes)
    shared = {n: p for n, p in learner.model.named_parameters() if n not in adapted}
    assert set(shared) == {"t1.weight", "t2.weight", "t3.weight"} | {
        f"norm{i}.{part}" for i in (1, 2) for part in ("weight", "bias")
    }
    assert all(p.grad.norm() > 0 for p in shared.values())


def test_rows_are_drawn_as_often_as_their_probability_says():
    learner, _, _ = learner_of("mt-net", temperature=0.3)
    probability = torch.linspace(0.05, 0.95, len(learner.rule.logits))
    masks = learner.rule.sample(torch.logit(probability).expand(20_000, -1))
    assert set(masks.unique().tolist()) == {0.0, 1.0}
    assert torch.allclose(masks.mean(0), probability, atol=0.02)  # five standard errors


def test_the_probability_is_where_masks_start():
    learner, _, _ = learner_of("mt-net", probability=0.8)
    assert torch.allclose(torch.sigmoid(learner.rule.logits), torch.tensor(0.8))


def test_predictions_take_the_expected_mask_and_are_the_same_each_time():
    learner, _, episodes = learner_of("mt-net", "mlp", rate=0.1)
    scattered(learner)
    first, again = (learner.path(episodes.support_x, episodes.support_y, steps=1) for _ in range(2))
    assert torch.equal(first.end, again.end)
    _, gradient = learner.gradient(first.points[0], episodes.support_x, episodes.support_y)
    head = gradient[:, -7:]  # six weights and a bias of the one output
    expected = first.points[0][:, -7:] - 0.1 * torch.sigmoid(learner.rule.logits[-1]) * head
    assert torch.allclose(first.end[:, -7:], expected, atol=1e-12)


def test_the_network_computes_what_it_did_and_its_layers_keep_their_names():
    for kind in ("conv", "mlp"):
        model, loss, episodes = small_problem(kind)
        learner = get_method("mt-net").build(model, {}, loss)
        x = episodes.query_x[0]
        assert torch.allclose(learner.model(x), model(x), atol=1e-12)
        assert set(dict(model.named_parameters())) < set(dict(learner.model.named_parameters()))


@pytest.mark.parametrize(
    "settings", [{"probability": 0.0}, {"probability": 1.0}, {"temperature": 0.0}, {"steps": 0}]
)
def test_settings_without_sense_are_refused(settings):
    with pytest.raises(UsageError, match=next(iter(settings))):
        learner_of("mt-net", **settings)


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(1, 1),
        nn.Sequential(nn.Sequential(nn.Linear(1, 2), nn.ReLU()), nn.Linear(2, 1)),
        nn.Sequential(),
    ],
)
def test_a_network_whose_layers_are_out_of_reach_is_refused(model):
    with pytest.raises(UsageError, match="model"):
        get_method("mt-net").build(model, {}, nn.functional.mse_loss)


def test_a_network_that_has_such_a_name_already_is_refused():
    model = nn.Sequential()
    model.add_module("t1", nn.Linear(1, 2))
    model.add_module("head", nn.Linear(2, 1))
    with pytest.raises(UsageError, match="rename"):
        get_method("mt-net").build(model, {}, nn.functional.mse_loss)


def test_tasks_with_the_same_masks_learn_side_by_side_what_they_learn_one_by_one(monkeypatch):
    learner, outer, episodes = learner_of("mt-net", rate=0.1)
    scattered(learner)
    one = learner.rule.sample(learner.rule.logits[None]).detach()
    monkeypatch.setattr(learner.rule, "sample", lambda logits: one.expand(len(logits), -1))
    whole = estimated(learner, outer, episodes)
    parts = [estimated(learner, outer, Episodes(*(t[i : i + 1] for t in episodes.tensors()))) for i in (0, 1)]
    assert torch.allclose(whole, torch.stack(parts).mean(0), atol=1e-10)


def test_masks_depend_on_the_seed_and_the_iteration_not_on_what_was_drawn_before():
    """So that a run that is resumed, or runs beside another, gives the same numbers."""
    config = Config.from_dict(
        {
            "problem": {"name": "sine"},
            "method": {"name": "mt-net"},
            "training": {"iterations": 3, "tasks": 2, "dtype": "float64", "device": "cpu", "threads": 1},
        }
    )
    ends = []
    for noise in (0, 7):
        torch.manual_seed(noise)
        learner = train(config)
        ends.append(torch.cat([p.detach().flatten() for p in learner.parameters()]))
    assert torch.equal(*ends)
