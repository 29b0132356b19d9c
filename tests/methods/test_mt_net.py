"""MT-Net: MAML in a learned metric and a learned subspace."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from pathaware import Episodes, GradientDescent, Layout, MetaLearner
from pathaware.methods import get_method
from pathaware.models.surgery import LAYERS, identity_after, insert
from pathaware.training.config import Config
from tests.conftest import distance, regression_episodes
from tests.methods.checks import differences, estimated, learner_of, scattered
from tests.training.fits import trained


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
    plain = copy.deepcopy(learner.model)
    maml = MetaLearner(plain, GradientDescent(learner.rule.layout, 5, rate=0.1), learner.loss)
    estimated(maml, outer, episodes)
    ours, theirs = (m.path(episodes.support_x, episodes.support_y) for m in (learner, maml))
    assert distance(ours.end, theirs.end) < 1e-10
    assert distance(ours.end, theirs.points[0]) > 1e-3
    for name, parameter in plain.named_parameters():
        assert torch.allclose(learner.model.get_parameter(name).grad, parameter.grad, atol=1e-12), name


class Masked(GradientDescent):
    """Gradient descent where `mask [T, D]` is one."""

    def __init__(self, layout: Layout, steps: int, mask: torch.Tensor, rate: float) -> None:
        super().__init__(layout, steps, rate=rate)
        self.mask = mask

    def step(self, j, points, gradient):
        return points[-1] - self.rate * self.mask * gradient


@pytest.mark.parametrize("order", ["first", "second"])
@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_it_is_descent_of_layers_that_are_followed_by_square_ones(kind, order, monkeypatch):
    """As the authors write it: y = T (W x + b), where rows of W and b descend and T is shared."""
    learner, _, episodes = learner_of("mt-net", kind, rate=0.1, steps=3)
    scattered(learner)
    rule, model = learner.rule, learner.model
    mask = rule.sample(rule.logits.expand(len(episodes), -1)).detach()
    monkeypatch.setattr(rule, "sample", lambda logits: mask)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LAYERS)}
    theirs = insert(copy.deepcopy(model), "t", {n: identity_after(m) for n, m in layers.items()}).double()
    with torch.no_grad():
        for i, metric in enumerate(rule.metrics, start=1):
            weight = theirs.get_parameter(f"t{i}.weight")
            weight.copy_(metric.view(weight.shape))
    units, entries = mask.split([len(metric) for metric in rule.metrics], 1), rule.layout.entries
    of_layers = dict(zip(layers, units, strict=True))
    spread = [
        of_layers[entry.name.rpartition(".")[0]].repeat_interleave(entry.numel // entry.shape[0], 1)
        for entry in entries
    ]
    maml = MetaLearner(theirs, Masked(rule.layout, 3, torch.cat(spread, 1), 0.1), learner.loss)
    losses, expected = (m.adapted_losses(episodes, order).mean() for m in (learner, maml))
    assert distance(losses, expected) < 1e-12
    losses.backward()
    expected.backward()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, theirs.get_parameter(name).grad, atol=1e-12), name
    for i, metric in enumerate(rule.metrics, start=1):
        found = theirs.get_parameter(f"t{i}.weight").grad.view(metric.shape)
        assert distance(metric.grad, found) < 1e-10, i
        assert found.norm() > 1e-6


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
    gradients, chosen = differences(
        learner, lambda: learner.adapted_losses(episodes, "first").mean(), most=80
    )
    assert distance(found[chosen], gradients) < 1e-6
    sizes = {n: p.grad.norm() for n, p in learner.named_parameters() if not n.endswith("bias")}
    assert all(size > 1e-6 for size in sizes.values()), sizes


def test_a_path_has_one_draw_and_every_task_its_own():
    learner, _, episodes = learner_of("mt-net", rate=0.1)
    masks = []
    sample = learner.rule.sample
    learner.rule.sample = lambda logits: masks.append(sample(logits)) or masks[-1]
    learner.path(episodes.support_x, episodes.support_y, order="first")
    (mask,) = masks
    assert not torch.equal(mask[0], mask[1])


def test_metrics_and_norms_do_not_adapt_but_learn():
    learner, outer, episodes = learner_of("mt-net", rate=0.1)
    adapted = {entry.name for entry in learner.rule.layout.entries}
    layers = ("conv1", "conv2", "head")
    assert adapted == {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    estimated(scattered(learner), outer, episodes)
    shared = {n: p for n, p in learner.model.named_parameters() if n not in adapted}
    assert set(shared) == {f"norm{i}.{part}" for i in (1, 2) for part in ("weight", "bias")}
    assert all(p.grad.norm() > 0 for p in (*shared.values(), *learner.rule.metrics))


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
    _, gradient = learner.gradient_at(first.points[0], episodes.support_x, episodes.support_y)
    head = gradient[:, -7:]  # six weights and a bias of the one output
    squared, expected = learner.rule.metrics[-1].square(), torch.sigmoid(learner.rule.logits[-1])
    assert torch.allclose(
        first.end[:, -7:], first.points[0][:, -7:] - 0.1 * squared * expected * head, atol=1e-12
    )


@pytest.mark.parametrize(
    "model",
    [
        nn.Linear(1, 1),
        nn.Sequential(nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU()), nn.Linear(2, 1)),
    ],
)
def test_layers_may_lie_anywhere_in_a_network(model):
    learner = get_method("mt-net").build(model.double(), {"rate": 0.1}, nn.functional.mse_loss)
    learner.meta_loss(regression_episodes()).backward()
    assert all(p.grad.norm() > 0 for p in learner.parameters())


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
        learner = trained(config)
        ends.append(torch.cat([p.detach().flatten() for p in learner.parameters()]))
    assert torch.equal(*ends)
