"""MAML++: step sizes, norm parameters and losses per step."""

from __future__ import annotations

import pytest
import torch

from pathaware.methods.maml_plus_plus import LEAST, MultiStep
from tests.conftest import distance
from tests.methods.checks import differences, estimated, learner_of, scattered

PLAIN = {"learned_rates": False, "per_step_norm": False, "multi_step_loss": False}
KINDS = pytest.mark.parametrize("kind", ["conv", "mlp"])


def made(kind="conv", **settings):
    torch.manual_seed(1)
    return learner_of("maml++", kind, **{"steps": 3, "rate": 0.1, **settings})


def maml(name="maml", kind="conv"):
    torch.manual_seed(1)
    return learner_of(name, kind, steps=3, rate=0.1)


def query_losses(learner, episodes):
    """Mean query losses after steps 1 … n, each from a separate path of that length: `[n]`."""
    x, y, query_x, query_y = episodes.tensors()
    ends = [learner.end(learner.path(x, y, steps=j)) for j in range(1, learner.rule.steps + 1)]
    return torch.stack([learner.losses_at(end, query_x, query_y).mean() for end in ends])


@KINDS
@pytest.mark.parametrize("progress", [None, 0.1])
def test_the_meta_gradient_of_several_losses_equals_finite_differences(kind, progress):
    """Halfway through the share of 0.2, two thirds of the weight lie on the last of three steps."""
    learner, outer, episodes = made(kind, multi_step_share=0.2)
    scattered(learner)
    weights = torch.full((3,), 1 / 3)
    if progress is not None:
        outer.on_progress(progress, learner)
        weights = torch.tensor([1 / 6, 1 / 6, 2 / 3])
    gradients, chosen = differences(learner, lambda: weights @ query_losses(learner, episodes), most=60)
    assert distance(estimated(learner, outer, episodes)[chosen], gradients) < 1e-6


def test_weights_sum_to_one_and_go_over_to_the_last_step():
    learner, outer, _ = made(steps=5, multi_step_share=0.5)
    last = []
    for progress in (0.0, 0.1, 0.25, 0.4, 0.49, 0.4999):
        outer.on_progress(progress, learner)
        assert outer.weights.sum().item() == pytest.approx(1, abs=1e-12)
        assert len(set(outer.weights[:-1].tolist())) == 1
        last.append(outer.weights[-1].item())
    assert last[0] == pytest.approx(1 / 5)
    assert last == sorted(last)
    assert last[-1] == pytest.approx(1 - 4 * LEAST / 5)


def test_weights_change_in_place_so_that_a_recording_reads_them():
    learner, outer, _ = made()
    outer.on_progress(0.0, learner)
    place = outer.weights.data_ptr()
    assert not outer.on_progress(0.1, learner)
    assert outer.weights.data_ptr() == place


def test_weights_follow_a_learner_that_is_converted_after_its_first_iteration():
    learner, outer, episodes = made()
    expected = estimated(learner, outer, episodes)
    converted = estimated(learner.float(), outer, episodes.to(dtype=torch.float32))
    assert distance(converted.double(), expected) < 1e-4


def test_only_what_a_recording_cannot_follow_makes_it_void():
    learner, outer, _ = made(multi_step_share=0.3, first_order_share=0.6)
    heard = [outer.on_progress(i / 10, learner) for i in range(10)]
    assert [i for i, changed in enumerate(heard) if changed] == [3, 6]


def test_once_weights_have_gone_over_the_last_loss_is_all_there_is():
    learner, outer, episodes = made(multi_step_share=0.2)
    assert outer.on_progress(0.2, learner)
    late = estimated(learner, outer, episodes)
    alone = estimated(learner, MultiStep(multi_step_loss=False), episodes)
    assert torch.equal(late, alone)
    assert distance(estimated(learner, MultiStep(), episodes), alone) > 1e-2


@KINDS
def test_in_its_first_order_phase_it_is_fomaml_and_afterwards_maml(kind):
    learner, outer, episodes = made(kind, **PLAIN, first_order_share=0.5)
    assert distance(estimated(learner, outer, episodes), estimated(*maml("fomaml", kind))) < 1e-12
    assert not outer.on_progress(0.4, learner)
    assert outer.on_progress(0.5, learner)
    assert distance(estimated(learner, outer, episodes), estimated(*maml(kind=kind))) < 1e-12


@KINDS
def test_learned_rates_start_as_the_path_of_maml(kind):
    learner, _, episodes = made(kind, per_step_norm=False)
    plain, _, _ = maml(kind=kind)
    paths = [one.path(episodes.support_x, episodes.support_y) for one in (learner, plain)]
    for own, expected in zip(*(path.points for path in paths), strict=True):
        assert torch.allclose(own, expected, atol=1e-12)


def test_each_step_and_tensor_has_a_rate():
    learner, _, episodes = made(per_step_norm=False)
    entries = learner.rule.layout.entries
    assert learner.rule.q.shape == (3, len(entries))
    with torch.no_grad():
        learner.rule.q.zero_()
        learner.rule.q[1, 4] = 0.1
    points = learner.path(episodes.support_x, episodes.support_y).points
    moved = [
        (j, e.name)
        for j in range(3)
        for e, part in zip(
            entries, (points[j + 1] - points[j]).split(learner.rule.layout.sizes, 1), strict=True
        )
        if part.any()
    ]
    assert moved == [(1, entries[4].name)]


def test_norm_layers_take_the_values_of_each_step_and_no_others_do():
    learner, _, episodes = made(rate=0.0)
    scattered(learner)
    with torch.no_grad():
        learner.rule.q.zero_()
    start = dict(learner.model.named_parameters())
    path = learner.path(episodes.support_x, episodes.support_y, steps=5, extend=True)
    for j, own in enumerate((torch.zeros(12), *learner.rule.norms, *learner.rule.norms[-1:].expand(2, -1))):
        found = path.parameters(j)
        set_here = dict(
            zip(("norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"), own.split(3), strict=True)
        )
        for name, parameter in start.items():
            assert torch.allclose(found[name], parameter + set_here.get(name, 0.0), atol=1e-12), (j, name)


def test_norm_layers_do_not_adapt():
    learner, _, episodes = made()
    path = learner.path(episodes.support_x, episodes.support_y)
    end, start = path.parameters(-1), path.parameters(0)
    kept = {name for name in end if torch.allclose(end[name], start[name], atol=1e-12)}
    # a bias ahead of batch norm has no gradient
    assert kept >= {name for name in end if "norm" in name}
    assert not kept & {"conv1.weight", "conv2.weight", "head.weight", "head.bias"}


def test_every_norm_of_every_step_is_learned():
    learner, outer, episodes = made()
    estimated(scattered(learner), outer, episodes)
    assert learner.rule.norms.grad.abs().amin(1).min() > 0
    assert learner.model.norm1.weight.grad.abs().min() > 0


def test_a_network_without_norm_layers_has_none_to_set():
    learner, _, _ = made("mlp")
    assert {name for name, _ in learner.rule.named_parameters()} == {"q"}


def test_steps_beyond_the_trained_ones_repeat_the_last_rates():
    learner, _, episodes = made("mlp", guard=False)
    scattered(learner, 0.02)
    points = learner.path(episodes.support_x, episodes.support_y, steps=5, extend=True).points
    gradient = learner.gradient_at(points[4], episodes.support_x, episodes.support_y)[1]
    assert torch.allclose(points[5], points[4] - learner.rule.q[2][learner.rule.q_groups.index] * gradient)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("execution", ["loop", "vmap", "batched"])
def test_no_execution_changes_the_meta_gradient(execution, checkpoint):
    learner, outer, episodes = made()
    other, _, _ = made(execution=execution, checkpoint=checkpoint)
    expected = estimated(learner, outer, episodes)
    assert distance(estimated(other, outer, episodes), expected) < 1e-9
