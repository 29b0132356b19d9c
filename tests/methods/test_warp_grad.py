"""WarpGrad: layers that are learned from single steps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from pathaware import Episodes, GradientDescent, MetaLearner
from pathaware.core.meta_gradient import Unrolled
from pathaware.methods import get_method
from pathaware.methods.warp_grad import WarpGrad
from pathaware.models import conv4
from tests.conftest import distance, small_problem
from tests.methods.checks import differences, estimated, learner_of, most_kept, scattered


def by_name(learner, vector):
    sizes = {name: p.numel() for name, p in learner.model.named_parameters()}
    return dict(zip(sizes, vector.split(list(sizes.values())), strict=True))


def one_step_losses(learner, points, episodes, rate):
    """The mean over points and tasks of the query loss after one more step, computed one by one."""
    model, loss, layout = learner.model, learner.loss, learner.rule.layout

    def loss_at(point, x, y):
        return loss(functional_call(model, layout.views(point), (x,)), y)

    def after(point, x, y, query_x, query_y):
        with torch.enable_grad():
            point = point.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(loss_at(point, x, y), point)
        return loss_at(point - rate * gradient, query_x, query_y)

    tasks = list(zip(*episodes.tensors(), strict=True))
    return torch.stack([after(p[i], *t) for p in points for i, t in enumerate(tasks)]).mean()


@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_warps_learn_by_the_loss_one_step_from_every_point_of_a_frozen_path(kind):
    learner, outer, episodes = learner_of("warp-grad", kind, rate=0.1, steps=2)
    scattered(learner)
    points = learner.path(episodes.support_x, episodes.support_y).points
    found = by_name(learner, estimated(learner, outer, episodes))
    found = torch.cat([gradient for name, gradient in found.items() if "warp" in name])
    warps = nn.ModuleList([learner.model.get_submodule(name) for name in ("warp1", "warp2")])
    gradients, chosen = differences(
        warps, lambda: one_step_losses(learner, points[:2], episodes, 0.1), most=30
    )
    assert distance(found[chosen], gradients) < 1e-6


@pytest.mark.parametrize("scale", [1e3, 1e100])
def test_warps_do_not_learn_from_a_task_that_diverges(scale):
    learner, outer, episodes = learner_of("warp-grad", "mlp", rate=0.1, steps=3)
    scattered(learner)
    support_x, support_y, query_x, query_y = (t.clone() for t in episodes.tensors())
    support_x[1] *= scale
    others = [i for i in range(len(episodes)) if i != 1]
    wild = Episodes(support_x, support_y, query_x, query_y)
    tame = Episodes(*(t[others] for t in wild.tensors()))

    def of_warps(tasks: Episodes) -> Tensor:
        found = by_name(learner, estimated(learner, outer, tasks) * len(tasks))
        return torch.cat([gradient for name, gradient in found.items() if "warp" in name])

    assert distance(of_warps(wild), of_warps(tame)) < 1e-10


@pytest.mark.parametrize(("start", "order"), [("query", "first"), ("maml", "second")])
def test_the_start_learns_as_in_maml_of_first_or_second_order(start, order):
    learner, _, episodes = learner_of("warp-grad", rate=0.1)
    scattered(learner)
    ours = by_name(learner, estimated(learner, WarpGrad(start=start), episodes))
    maml = by_name(learner, estimated(learner, Unrolled(order), episodes))
    adapted = [entry.name for entry in learner.rule.layout.entries]
    a, b = (torch.cat([found[name] for name in adapted]) for found in (ours, maml))
    assert distance(a, b) < 1e-10
    warps = [name for name in ours if name not in adapted]
    a, b = (torch.cat([found[name] for name in warps]) for found in (ours, maml))
    assert distance(a, b) > 1e-2  # they do not learn as MAML's layers do


def test_the_start_may_be_pulled_to_where_tasks_end():
    learner, _, episodes = learner_of("warp-grad", rate=0.1)
    scattered(learner)
    path = learner.path(episodes.support_x, episodes.support_y)
    found = by_name(learner, estimated(learner, WarpGrad(start="pull"), episodes))
    pull = learner.rule.layout.views((path.points[0] - learner.end(path)).mean(0))
    assert all(torch.allclose(found[name], pull[name].flatten(), atol=1e-12) for name in pull)


@pytest.mark.parametrize("start", ["query", "pull", "maml"])
def test_warps_learn_the_same_whatever_the_start_learns_by(start):
    learner, outer, episodes = learner_of("warp-grad", "mlp", rate=0.1)
    scattered(learner)
    expected = by_name(learner, estimated(learner, outer, episodes))
    found = by_name(learner, estimated(learner, WarpGrad(start=start), episodes))
    assert all(torch.allclose(found[name], expected[name]) for name in found if "warp" in name)


@pytest.mark.parametrize("kind", ["conv", "mlp"])
def test_at_the_identity_its_path_is_that_of_gradient_descent(kind):
    model, loss, episodes = small_problem(kind)
    plain = MetaLearner(copy.deepcopy(model), GradientDescent(model, 4, rate=0.1), loss)
    learner = get_method("warp-grad").build(model, {"steps": 4, "rate": 0.1}, loss)
    x, y = episodes.support_x, episodes.support_y
    assert torch.allclose(learner.model(x[0]), plain.model(x[0]), atol=1e-12)
    assert learner.rule.layout == plain.rule.layout
    ours, theirs = learner.path(x, y), plain.path(x, y)
    assert distance(ours.end, theirs.end) < 1e-10
    with torch.no_grad():
        learner.model.get_parameter("warp1.weight").add_(torch.randn(()))
    assert distance(learner.path(x, y).end, theirs.end) > 1e-4


def test_without_derivatives_along_the_path_memory_does_not_grow():
    kept = {}
    for steps in (2, 6):
        learner, outer, episodes = learner_of("warp-grad", rate=0.1, steps=steps, start="query")
        kept[steps] = [most_kept(learner, o, episodes) for o in (outer, Unrolled())]
    assert kept[6][0] < 1.05 * kept[2][0]
    assert kept[6][1] > 1.5 * kept[2][1]  # the measure can tell


def test_warps_stand_between_blocks_and_the_rest_keeps_its_name():
    model, loss, _ = small_problem("conv")
    names = [name for name, _ in get_method("warp-grad").build(model, {}, loss).model.named_children()]
    blocks = [[f"conv{i}", f"norm{i}", f"relu{i}", f"pool{i}", f"warp{i}"] for i in (1, 2)]
    assert names == [*blocks[0], *blocks[1], "flatten", "head"]
    model, loss, _ = small_problem("mlp")
    names = [name for name, _ in get_method("warp-grad").build(model, {}, loss).model.named_children()]
    assert names == ["0", "1", "warp1", "2", "3", "warp2", "4"]


def test_blocks_that_run_as_one_on_a_gpu_are_still_found():
    model = get_method("warp-grad").build(conv4(5, size=32), {}, nn.functional.cross_entropy)
    assert len(model.execution.forward.blocks) == 4


def test_warps_follow_blocks_that_are_modules_of_their_own():
    block = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
    model = nn.Sequential(block, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    learner = get_method("warp-grad").build(model, {"kernel": 1}, nn.functional.cross_entropy)
    x = torch.randn(2, 1, 5, 5)
    assert [name for name, _ in learner.model.named_children()] == ["0", "1", "warp1", "2", "3"]
    assert torch.allclose(learner.model(x), model(x))
