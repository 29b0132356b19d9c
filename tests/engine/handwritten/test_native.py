"""One task's loss and slope by PyTorch's own backward kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pathaware import GradientDescent, MetaLearner
from pathaware.engine.handwritten.single_task import SingleTaskProgram
from tests.conftest import distance, small_problem

CUDA = torch.cuda.is_available()


def one_task(kind: str) -> tuple[MetaLearner, tuple[torch.Tensor, ...]]:
    model, loss, episodes = small_problem(kind)
    learner = MetaLearner(model, GradientDescent(model, 3, rate=0.05), loss)
    return learner, (episodes.support_x[:1], episodes.support_y[:1])


@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_losses_and_slopes_are_those_of_autograd(kind):
    learner, task = one_task(kind)
    point = learner.rule.layout.flatten(learner.model).detach()[None].requires_grad_()
    losses = learner.execution.losses(learner.predict(point, task[0]), task[1])
    (slope,) = torch.autograd.grad(losses.sum(), point)
    native = SingleTaskProgram(learner.execution.program)
    assert distance(native.slope(point.detach(), *task)[1], slope) < 1e-12
    assert distance(native.values(point.detach(), *task), losses) < 1e-12


def test_it_serves_one_task_on_a_gpu_that_nobody_differentiates():
    learner, task = one_task("conv")
    point = learner.rule.layout.flatten(learner.model).detach()[None]
    assert not learner.execution.single_task.fits(point, *task, differentiable=False)
    if not CUDA:
        return
    learner, point, task = learner.cuda(), point.cuda(), tuple(t.cuda() for t in task)
    assert learner.execution.single_task.fits(point, *task, differentiable=False)
    assert not learner.execution.single_task.fits(point, *task, differentiable=True)
    twice = [t.expand(2, *t.shape[1:]) for t in task]
    assert not learner.execution.single_task.fits(point.expand(2, -1), *twice, differentiable=False)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_labels_that_are_to_be_ignored_are_left_to_autograd_even_after_good_ones():
    learner, (x, y) = one_task("conv")
    learner, x, y = learner.cuda(), x.cuda(), y.cuda().clone()
    point = learner.rule.layout.flatten(learner.model).detach()[None]
    assert learner.execution.single_task.fits(point, x, y, differentiable=False)
    y[0, 0] = -100
    assert not learner.execution.single_task.fits(point, x, y, differentiable=False)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_an_adaptation_on_a_gpu_ends_where_the_loop_ends():
    learner, task = one_task("conv")
    loop = MetaLearner(learner.model, learner.rule, F.cross_entropy, execution="loop").cuda()
    learner, task = learner.cuda(), tuple(t.cuda() for t in task)
    assert distance(learner.path(*task).end, loop.path(*task).end) < 1e-10
