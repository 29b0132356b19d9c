"""Loss and gradient of one task with PyTorch's own backward kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pathaware import GradientDescent, MetaLearner
from pathaware.engine.handwritten.single_task import SingleTaskProgram
from pathaware.methods.warp_grad import warped
from tests.conftest import distance, small_problem, with_constant_statistics
from tests.methods.checks import scattered

CUDA = torch.cuda.is_available()


def one_task(kind: str) -> tuple[MetaLearner, tuple[torch.Tensor, ...]]:
    model, loss, episodes = small_problem(kind.split()[-1])
    model = with_constant_statistics(model) if kind.startswith("constant") else model
    model = scattered(warped(model)) if kind.startswith("warped") else model
    learner = MetaLearner(model, GradientDescent(model, 3, rate=0.05), loss)
    return learner, (episodes.support_x[:1], episodes.support_y[:1])


@pytest.mark.parametrize("kind", ["mlp", "conv", "constant conv", "warped conv"])
def test_losses_and_gradients_are_those_of_autograd(kind):
    learner, task = one_task(kind)
    point = learner.rule.layout.flatten(learner.model).detach()[None].requires_grad_()
    losses = learner.execution.losses(learner.outputs_at(point, task[0]), task[1])
    (gradient,) = torch.autograd.grad(losses.sum(), point)
    program = SingleTaskProgram(learner.execution.program)
    assert distance(program.loss_and_gradient(point.detach(), *task)[1], gradient) < 1e-12
    assert distance(program.losses(point.detach(), *task), losses) < 1e-12


def test_it_supports_one_task_on_a_gpu_without_a_graph():
    learner, task = one_task("conv")
    point = learner.rule.layout.flatten(learner.model).detach()[None]
    assert not learner.execution.single_task.supports(point, *task, differentiable=False)
    if not CUDA:
        return
    learner, point, task = learner.cuda(), point.cuda(), tuple(t.cuda() for t in task)
    assert learner.execution.single_task.supports(point, *task, differentiable=False)
    assert not learner.execution.single_task.supports(point, *task, differentiable=True)
    twice = [t.expand(2, *t.shape[1:]) for t in task]
    assert not learner.execution.single_task.supports(point.expand(2, -1), *twice, differentiable=False)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_ignored_labels_are_left_to_autograd_even_after_others():
    learner, (x, y) = one_task("conv")
    learner, x, y = learner.cuda(), x.cuda(), y.cuda().clone()
    point = learner.rule.layout.flatten(learner.model).detach()[None]
    assert learner.execution.single_task.supports(point, x, y, differentiable=False)
    y[0, 0] = -100
    assert not learner.execution.single_task.supports(point, x, y, differentiable=False)


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
@pytest.mark.parametrize("kind", ["conv", "constant conv", "warped conv"])
def test_an_adaptation_on_a_gpu_ends_where_the_loop_ends(kind):
    learner, task = one_task(kind)
    loop = MetaLearner(learner.model, learner.rule, F.cross_entropy, execution="loop").cuda()
    learner, task = learner.cuda(), tuple(t.cuda() for t in task)
    assert distance(learner.path(*task).end, loop.path(*task).end) < 1e-10
