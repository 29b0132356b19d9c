"""Hand-written derivatives against autograd's, layer by layer and loss by loss."""

from __future__ import annotations

import gc
import os
import signal
import time
import warnings
from contextlib import AbstractContextManager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware import GradientDescent, Layout, MetaLearner, UsageError
from pathaware.core.few_shot import FewShotLearner
from pathaware.engine.handwritten import program as programs
from pathaware.engine.handwritten.conv_block import Convolution
from pathaware.engine.handwritten.nodes import PassState
from tests.conftest import (
    agrees_with_the_loop,
    distance,
    image_episodes,
    meta_gradient,
    regression_episodes,
    with_constant_statistics,
)


def block(
    inputs: int, outputs: int, kernel=3, padding=1, pool=2, *, bias=True, least_gain=-1.0
) -> list[nn.Module]:
    """With gains of both signs, and one that is zero: the pool then sees equal values only."""
    norm = nn.BatchNorm2d(outputs, track_running_stats=False)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(least_gain, 1, outputs))
        norm.bias.copy_(torch.randn(outputs) + 0.5)
    conv = nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=bias)
    return [conv, norm, nn.ReLU(), nn.MaxPool2d(pool)]


def constant(layers: list[nn.Module]) -> list[nn.Module]:
    """The same layers with constant statistics in every batch norm."""
    return list(with_constant_statistics(nn.Sequential(*layers)))


ROWS = {
    "linear": lambda: [nn.Linear(1, 3)],
    "linear without bias": lambda: [nn.Linear(1, 4, bias=False), nn.ReLU(), nn.Linear(4, 3, bias=False)],
    "ReLU": lambda: [nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3)],
    "ReLU first": lambda: [nn.ReLU(), nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 3)],
    "tanh first": lambda: [nn.Tanh(), nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 3)],
    **{
        name: lambda kind=kind: [nn.Linear(1, 4), kind(), nn.Linear(4, 5), kind(), nn.Linear(5, 3)]
        for name, kind in {
            "tanh": nn.Tanh,
            "sigmoid": nn.Sigmoid,
            "GELU": nn.GELU,
            "SiLU": nn.SiLU,
            "softplus": nn.Softplus,
            "ELU": nn.ELU,
            "leaky ReLU": lambda: nn.LeakyReLU(0.2),
        }.items()
    },
}
IMAGES = {
    "flat images": lambda: [nn.Flatten(), nn.Linear(2 * 8 * 8, 3)],
    "one block": lambda: [*block(2, 3), nn.Flatten(), nn.Linear(3 * 16, 3)],
    "no negative gain": lambda: [*block(2, 3, least_gain=0.0), nn.Flatten(), nn.Linear(3 * 16, 3)],
    "two blocks": lambda: [*block(2, 3), *block(3, 5), nn.Flatten(), nn.Linear(5 * 4, 3)],
    "a block without bias": lambda: [*block(2, 3), *block(3, 5, bias=False), nn.Flatten(), nn.Linear(20, 3)],
    "pool 3, pixels left over": lambda: [*block(2, 3, pool=3), *block(3, 3), nn.Flatten(), nn.Linear(3, 3)],
    "other kernels": lambda: [*block(2, 3), *block(3, 3, 5, 2), *block(3, 5, 2, 1, 1), nn.Flatten()],
    "no pooling": lambda: [*block(2, 3), *block(3, 5)[:3], nn.Flatten(), nn.Linear(5 * 16, 3)],
    "no padding": lambda: [*block(2, 3, 3, 0, 1), *block(3, 3, 3, 0, 2), nn.Flatten(), nn.Linear(12, 3)],
    "constant statistics": lambda: constant(
        [*block(2, 3), *block(3, 5, pool=1), nn.Flatten(), nn.Linear(80, 3)]
    ),
    "constant first block": lambda: [*constant(block(2, 3)), *block(3, 5), nn.Flatten(), nn.Linear(20, 3)],
    "a convolution between": lambda: [
        *(*block(2, 3), nn.Conv2d(3, 4, 3, padding=1), *block(4, 5), nn.Conv2d(5, 5, 1, bias=False)),
        *(nn.Flatten(), nn.Linear(20, 3)),
    ],
    "a convolution first": lambda: [nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(108, 3)],
    "an activation between": lambda: [*block(2, 3), nn.Tanh(), *block(3, 5), nn.Flatten(), nn.Linear(20, 3)],
}


def learner_of(layers: list[nn.Module], loss: object) -> MetaLearner:
    model = nn.Sequential(*layers)
    return MetaLearner(model, GradientDescent(model, 2, rate=0.1), loss)


def problem(name: str) -> tuple[MetaLearner, Tensor, Tensor]:
    if name in IMAGES:
        episodes = image_episodes(tasks=2)
        return learner_of(IMAGES[name](), F.cross_entropy), episodes.support_x, episodes.support_y
    x, y = torch.randn(3, 5, 1), torch.randn(3, 5, 3)
    return learner_of(ROWS[name](), F.mse_loss), x, y


def by_autograd(learner: MetaLearner, point: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    learner.execution.program = None
    return learner.gradient_at(point, x, y, create_graph=True)


@pytest.mark.parametrize("name", [*ROWS, *IMAGES])
@pytest.mark.parametrize("native", [False, True])
def test_loss_gradient_and_hessian_vector_product_are_those_of_autograd(name, native, monkeypatch):
    monkeypatch.setattr(Convolution, "_native", lambda self, x: native)
    learner, x, y = problem(name)
    initial = learner.rule.layout.flatten(learner.model).detach()
    agrees_with_autograd(learner, initial + 0.05 * torch.randn(len(x), len(initial)) * (initial != 0), x, y)


def agrees_with_autograd(learner: MetaLearner, point: Tensor, x: Tensor, y: Tensor) -> None:
    direction, program = torch.randn_like(point), learner.execution.program
    loss, gradient, saved = program.loss_and_gradient(point, x, y)
    product = program.hvp(point, direction, saved)
    assert torch.equal(program.losses(point, x, y), loss)
    expected_loss, expected = by_autograd(learner, point.requires_grad_(), x, y)
    assert distance(loss, expected_loss) < 1e-12
    assert distance(gradient, expected) < 1e-10
    assert distance(product, torch.autograd.grad((expected * direction).sum(), point)[0]) < 1e-10


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("inductive", [False, True])
@pytest.mark.parametrize("name", ["tanh", *IMAGES])
def test_predictions_are_those_of_the_layers(name, inductive, native, monkeypatch):
    monkeypatch.setattr(Convolution, "_native", lambda self, x: native)
    learner, x, _ = problem(name)
    point = learner.rule.layout.flatten(learner.model).detach().expand(len(x), -1)
    queries, support = torch.randn_like(x), x[:, :-1] if inductive else None
    program = learner.execution.program
    ours = program.predict(point, queries, support)
    learner.execution.program = None
    assert distance(ours, learner.outputs_at(point, queries, support)) < 1e-12


def test_the_outputs_for_the_support_set_come_with_the_path():
    """They are those of a prediction at every point, for a task that the guard reverts as well."""
    model = nn.Sequential(*IMAGES["one block"]())
    learner = MetaLearner(model, GradientDescent(model, 3, rate=0.5), F.cross_entropy)
    episodes = image_episodes(tasks=6)
    path = learner.path(episodes.support_x, episodes.support_y)
    assert path.reverted().any()
    assert not path.reverted().all()
    for j in range(4):
        expected = learner.outputs_at(learner.end(path, j), episodes.support_x)
        assert distance(path.guarded_outputs(j), expected) < 1e-12


@pytest.mark.parametrize("execution", ["auto", "loop"])
def test_predictions_for_the_support_set_itself_are_those_for_equal_queries(execution):
    model = nn.Sequential(*IMAGES["one block"]())
    learner = MetaLearner(model, GradientDescent(model, 3, rate=0.1), F.cross_entropy, execution=execution)
    episodes = image_episodes(tasks=1)
    x, y = episodes.support_x[0], episodes.support_y[0]
    ((_, ours),) = learner.adapt_each(episodes.support_x, episodes.support_y)
    theirs = learner.predictions_per_step(x[None], y[None], x[None].clone(), queries="alone")
    for found, expected in zip(ours.outputs, theirs.outputs, strict=True):
        assert distance(found, expected) < 1e-12


@pytest.mark.parametrize("name", ["tanh", "two blocks", "a block without bias", "an activation between"])
def test_networks_adapted_side_by_side_are_frozen_to_the_statistics_of_their_support_sets(name):
    learner, x, y = problem(name)
    for t, (network, predictions) in enumerate(learner.adapt_each(x, y)):
        ((alone, expected),) = FewShotLearner.adapt_each(learner, x[t : t + 1], y[t : t + 1])
        queries = torch.randn_like(x[t])
        with torch.no_grad():
            assert distance(network(queries), alone(queries)) < 1e-12
        for found, output in zip(predictions.outputs, expected.outputs, strict=True):
            assert distance(found, output) < 1e-12


def test_large_query_sets_one_task_after_another_give_the_same_losses_and_gradients(monkeypatch):
    learner, x, y = problem("two blocks")
    point = learner.rule.layout.flatten(learner.model).detach().expand(len(x), -1)
    results = []
    for large in (programs.LARGE, 0):
        monkeypatch.setattr(programs, "LARGE", large)
        here = point.clone().requires_grad_()
        losses = learner.execution.query_losses(here, x, y)
        results.append((losses, *torch.autograd.grad((losses * torch.arange(1.0, 3.0)).sum(), here)))
    for side_by_side, in_turn in zip(*results, strict=True):
        assert distance(in_turn, side_by_side) < 1e-12


def test_cross_entropy_over_rows_is_that_of_autograd():
    learner = learner_of(ROWS["tanh"](), nn.CrossEntropyLoss())
    x, y = torch.randn(3, 5, 1), torch.randint(0, 3, (3, 5))
    agrees_with_autograd(learner, torch.randn(3, len(learner.rule.layout)), x, y)


def test_an_inner_gradient_is_one_node_and_its_loss_can_be_differentiated_too():
    learner, x, y = problem("ReLU")
    point = torch.randn(3, len(learner.rule.layout), requires_grad=True)

    def derivative(both: tuple[Tensor, Tensor]) -> Tensor:
        loss, gradient = both
        return torch.autograd.grad(loss.sum() + (gradient**2).sum(), point)[0]

    ours = learner.gradient_at(point, x, y, create_graph=True)
    assert ours[1].grad_fn.next_functions[0][0].variable is point
    assert distance(derivative(ours), derivative(by_autograd(learner, point, x, y))) < 1e-12


def test_without_a_graph_nothing_requires_a_gradient():
    learner, x, y = problem("ReLU")
    point = torch.randn(3, len(learner.rule.layout), requires_grad=True)
    loss, gradient = learner.gradient_at(point, x, y)
    assert not loss.requires_grad
    assert not gradient.requires_grad


def test_a_third_derivative_is_refused_and_not_wrong():
    learner, x, y = problem("tanh")
    point = torch.randn(3, len(learner.rule.layout), requires_grad=True)
    _, gradient = learner.gradient_at(point, x, y, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), point, create_graph=True)
    with pytest.raises(UsageError, match="cannot be differentiated again"):
        second.sum().backward()


def test_derivatives_in_the_examples_themselves_are_left_to_autograd():
    learner, x, y = problem("ReLU")
    x.requires_grad_()
    point = torch.randn(3, len(learner.rule.layout))
    _, gradient = learner.gradient_at(point.requires_grad_(), x, y, create_graph=True)
    (grad,) = torch.autograd.grad(gradient.square().sum(), x)
    assert grad.abs().sum() > 0


def test_ignored_labels_are_left_to_autograd():
    episodes = image_episodes()
    labels = episodes.support_y.clone()
    labels[:, 0] = -100
    model = nn.Sequential(*IMAGES["one block"]())
    rule = GradientDescent(model, 1)
    auto, loop = (MetaLearner(model, rule, F.cross_entropy, execution=e) for e in ("auto", "vmap"))
    point = rule.layout.flatten(model).detach().expand(2, -1)
    gradients = [learner.gradient_at(point, episodes.support_x, labels)[1] for learner in (auto, loop)]
    assert distance(*gradients) < 1e-10


def test_both_signs_of_gain_and_equal_values_in_a_pool_give_the_loop_s_meta_gradient():
    model, episodes = nn.Sequential(*IMAGES["two blocks"]()), image_episodes()
    episodes.support_x[:, :, :, :5] = 0.5  # like the background of a glyph
    agrees_with_the_loop(model, F.cross_entropy, episodes, GradientDescent(model, 3, rate=0.1))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))


def _with(layers: list[nn.Module], index: int, other: nn.Module) -> nn.Module:
    layers[index] = other
    return nn.Sequential(*layers)


def _norm(channels: int, **options: bool) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, track_running_stats=False, **options)


OTHERS = {
    "a layer called twice": Twice,
    "layer norm": lambda: nn.Sequential(nn.Linear(1, 4), nn.LayerNorm(4), nn.Linear(4, 1)),
    "stride": lambda: _with(IMAGES["one block"](), 0, nn.Conv2d(2, 3, 3, padding=1, stride=2)),
    "groups": lambda: _with(IMAGES["one block"](), 0, nn.Conv2d(2, 4, 3, padding=1, groups=2)),
    "dilation": lambda: _with(IMAGES["one block"](), 0, nn.Conv2d(2, 3, 3, padding=2, dilation=2)),
    "wide padding": lambda: _with(IMAGES["one block"](), 0, nn.Conv2d(2, 3, 1, padding=1)),
    "oblong kernel": lambda: _with(IMAGES["one block"](), 0, nn.Conv2d(2, 3, (3, 1), padding=1)),
    "padding by name": lambda: _with(IMAGES["one block"](), 0, nn.Conv2d(2, 3, 3, padding="same")),
    "norm without gain": lambda: _with(IMAGES["one block"](), 1, _norm(3, affine=False)),
    "overlapping pool": lambda: _with(IMAGES["one block"](), 3, nn.MaxPool2d(2, stride=1)),
    "padded pool": lambda: _with(IMAGES["one block"](), 3, nn.MaxPool2d(2, padding=1)),
    "pool that rounds up": lambda: _with(IMAGES["one block"](), 3, nn.MaxPool2d(2, ceil_mode=True)),
    "average pool": lambda: _with(IMAGES["one block"](), 3, nn.AvgPool2d(2)),
    "images to the end": lambda: nn.Sequential(*block(2, 3)),
}


@pytest.mark.parametrize(
    ("build", "loss"),
    [*((build, F.mse_loss) for build in OTHERS.values()), (lambda: nn.Linear(1, 1), F.smooth_l1_loss)],
    ids=[*OTHERS, "a custom loss"],
)
def test_networks_and_losses_without_a_hand_written_form_are_left_to_autograd(build, loss):
    model = build()
    assert MetaLearner(model, GradientDescent(model, 1), loss).execution.program is None


SHARED = {
    "norms": lambda name: not name.startswith(("1.", "5.")),
    "head": lambda name: not name.startswith("9."),
    "biases": lambda name: not name.endswith("bias"),
    "a block": lambda name: not name.startswith(("4.", "5.")),
}
"""Which parameters adapt in a network of two blocks and a linear layer; the others are shared."""


@pytest.mark.parametrize("order", ["first", "second"])
@pytest.mark.parametrize("shared", SHARED)
def test_shared_parameters_are_meta_learned_as_by_autograd(shared, order):
    torch.manual_seed(1)
    layers = [*block(2, 3), *block(3, 4), nn.Flatten(), nn.Linear(16, 3)]
    model, episodes = nn.Sequential(*layers), image_episodes()
    rule = GradientDescent(Layout.of(model, SHARED[shared]), 3, rate=0.1)
    learner = MetaLearner(model, rule, F.cross_entropy)
    assert learner.execution.program is not None
    ours = meta_gradient(learner, episodes, order)
    adapted = [network for network, _ in learner.adapt_each(episodes.support_x, episodes.support_y)]
    learner.execution.program = None
    assert distance(ours, meta_gradient(learner, episodes, order)) < 1e-10
    again = [network for network, _ in learner.adapt_each(episodes.support_x, episodes.support_y)]
    for one, other, x in zip(adapted, again, episodes.query_x, strict=True):
        assert distance(one(x), other(x)) < 1e-10


def test_layers_before_the_first_adapted_one_run_once_per_path_instead():
    model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
    rule = GradientDescent(Layout.of(model, adapted=lambda name: name.startswith("2.")), 2)
    assert MetaLearner(model, rule, F.mse_loss).execution.program is None


def test_a_single_layer_as_a_network_gives_the_loop_s_meta_gradient():
    model = nn.Linear(1, 1)
    rule = GradientDescent(model, 2, rate=0.1)
    agrees_with_the_loop(model, F.mse_loss, regression_episodes(), rule)


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def threads(learner: MetaLearner, tasks: int) -> AbstractContextManager[None]:
    return learner.meta_gradient.task_threads(learner, tasks)


@pytest.mark.parametrize("tasks", [1, 2, 5])
@pytest.mark.parametrize("name", ["two blocks", "constant statistics", "an activation between"])
def test_tasks_in_threads_give_the_loop_s_meta_gradient_and_predictions(name, tasks, two_threads):
    model = nn.Sequential(*IMAGES[name]())
    rule = GradientDescent(model, 3, rate=0.1)
    episodes = image_episodes(tasks=tasks)
    auto, loop = (MetaLearner(model, rule, F.cross_entropy, execution=e) for e in ("auto", "loop"))
    with threads(auto, tasks):
        assert torch.get_num_threads() == (1 if tasks > 1 else 2)
        found = meta_gradient(auto, episodes)
    assert torch.get_num_threads() == 2
    assert distance(found, meta_gradient(loop, episodes)) < 1e-10
    examples = episodes.support_x, episodes.support_y, episodes.query_x
    for queries in ("alone", "batch"):
        with torch.no_grad():
            ours, theirs = (each.predictions_per_step(*examples, queries=queries) for each in (auto, loop))
        assert torch.get_num_threads() == 2
        for output, expected in zip(ours.outputs, theirs.outputs, strict=True):
            assert distance(output, expected) < 1e-10


def test_a_gradient_from_threads_can_be_differentiated_outside_and_inside_of_them(two_threads):
    learner, x, y = problem("two blocks")
    point = learner.rule.layout.flatten(learner.model).detach().expand(len(x), -1).clone().requires_grad_()

    def product(gradient: Tensor) -> Tensor:
        return torch.autograd.grad(gradient.square().sum(), point)[0]

    with threads(learner, len(x)):
        gradient, other = (learner.gradient_at(point, x, y, create_graph=True)[1] for _ in range(2))
        inside = product(gradient)
    assert torch.equal(product(other), inside)
    assert distance(product(learner.gradient_at(point, x, y, create_graph=True)[1]), inside) < 1e-12


def test_an_error_in_one_of_the_threads_is_raised(two_threads):
    learner, x, y = problem("one block")
    point = learner.rule.layout.flatten(learner.model).detach().expand(len(x), -1)
    with pytest.raises(UsageError, match="labels must be 0 to"), threads(learner, len(x)):
        learner.gradient_at(point, x, y + 3)
    assert torch.get_num_threads() == 2


def test_more_than_two_threads_divide_operations_instead_of_tasks(two_threads):
    torch.set_num_threads(4)
    learner, x, _ = problem("one block")
    with threads(learner, len(x)):
        assert torch.get_num_threads() == 4


def test_rules_with_an_objective_and_rows_keep_pytorch_s_threads(two_threads):
    class Proximal(GradientDescent):
        def objective(self, j, point, context):
            losses = context.losses(context.predict(point, context.support_x), context.support_y)
            return losses, losses + point.square().sum(1)

    images, rows = nn.Sequential(*IMAGES["one block"]()), nn.Linear(1, 3)
    for model, rule in ((images, Proximal), (rows, GradientDescent)):
        learner = MetaLearner(model, rule(model, 1), F.cross_entropy)
        with threads(learner, 4):
            assert torch.get_num_threads() == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a fork")
def test_threads_of_tasks_start_again_in_a_forked_process(two_threads):
    learner, x, y = problem("one block")
    point = learner.rule.layout.flatten(learner.model).detach().expand(len(x), -1)

    def gradient() -> Tensor:
        with threads(learner, len(x)):
            return learner.gradient_at(point, x, y)[1]

    expected = gradient()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fork of several threads; only the child's own matter here
        child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(gradient(), expected) else 1)
    deadline, ended, status = time.monotonic() + 60, 0, 0
    while not ended:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            pytest.fail("the forked process hangs")
        time.sleep(0.01)
        ended, status = os.waitpid(child, os.WNOHANG)
    assert status == 0


class Descends(GradientDescent):
    """Descends a function of the outputs for two inputs and of the point itself."""

    function: str = "curved"

    def objective(self, j, point, context):
        outputs = context.predict(point, context.support_x)
        losses = context.losses(outputs, context.support_y)
        if self.function == "linear":  # nothing of the outputs' derivative depends on the outputs
            return losses.detach(), outputs.flatten(1).mean(1)
        if self.function == "point":
            return losses.detach(), point.square().sum(1)
        others = context.predict(point, context.support_x.flip(1) + 1)
        return losses, losses + (others.sin() * outputs).flatten(1).mean(1) + point.square().mean(1).sqrt()


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("function", ["curved", "linear", "point"])
@pytest.mark.parametrize("kind", ["all", "some"])
def test_steps_that_descend_another_function_have_the_loops_meta_gradient(function, kind, checkpoint):
    model = nn.Sequential(*block(2, 3), nn.Flatten(), nn.Linear(48, 3))
    rule = Descends(Layout.of(model, lambda name: kind == "all" or name[0] != "1"), 2, rate=0.1)
    rule.function = function
    episodes = image_episodes(size=8)
    found = {}
    for execution in ("loop", "batched"):
        learner = MetaLearner(model, rule, F.cross_entropy, execution=execution, checkpoint=checkpoint)
        assert (learner.execution.program is None) is (execution == "loop")
        ends = learner.path(*episodes.tensors()[:2]).end
        found[execution] = torch.cat([meta_gradient(learner, episodes), ends.flatten()])
    assert distance(found["batched"], found["loop"]) < 1e-10


def test_an_objective_is_pulled_back_by_the_program(monkeypatch):
    calls = []
    pull = programs.Program.pull
    monkeypatch.setattr(programs.Program, "pull", lambda *args: (calls.append(1), pull(*args))[1])
    model = nn.Sequential(*block(2, 3), nn.Flatten(), nn.Linear(48, 3))
    learner = MetaLearner(model, Descends(model, 3), F.cross_entropy)
    learner.path(*image_episodes(size=8).tensors()[:2])
    assert len(calls) == 6, "two passes at every step"


def test_the_graph_of_an_objective_is_freed_with_its_results():
    """At once, without a collection of garbage. A node that owns its own result is not even found by one."""
    model = nn.Sequential(*block(2, 3), nn.Flatten(), nn.Linear(48, 3))
    learner = MetaLearner(model, Descends(model, 3), F.cross_entropy)
    gc.collect()
    gc.disable()
    try:
        learner.meta_loss(image_episodes(size=8)).backward()
        assert not [each for each in gc.get_objects() if type(each) is PassState]
    finally:
        gc.enable()
