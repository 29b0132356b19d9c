"""Which execution each network gets, and that all agree."""

from __future__ import annotations

import copy
import operator
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware import Episodes, GradientDescent, Layout, MetaLearner, UsageError
from pathaware.core.losses import per_task
from pathaware.core.task_mapping import CorrectedOperations
from pathaware.models import conv4, mlp, resnet12
from tests.conftest import (
    agrees_with_the_loop,
    distance,
    image_episodes,
    meta_gradient,
    regression_episodes,
    slope_error,
    small_problem,
)


class Residual(nn.Module):
    """Written the way people write networks: functions between layers, a skip, a flattening view."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(2, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4, track_running_stats=False)
        self.b = nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.a(x)), inplace=True)
        x = torch.relu(self.b(x) + x)
        x = nn.functional.relu(x)
        return self.head(self.pool(x).view(x.size(0), -1))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y if y.sum() > 1e9 else 2 * y


class Shaped(nn.Module):
    """Runs under vmap and has no batched form."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.logsumexp(self.linear(x), dim=-1, keepdim=True)


def between(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(1, 4), *layers, nn.Linear(4, 1))


def pooled() -> nn.Module:
    activation = nn.LeakyReLU(inplace=True)
    return nn.Sequential(nn.Conv2d(2, 3, 3, stride=2), activation, nn.AvgPool2d(3), nn.Flatten())


def over_rows() -> nn.Module:
    return between(nn.BatchNorm1d(4, track_running_stats=False))


NETWORKS = {
    "residual": (Residual, F.cross_entropy, image_episodes, "batched"),
    "layer norm": (lambda: between(nn.LayerNorm(4), nn.GELU()), F.mse_loss, regression_episodes, "batched"),
    "batch norm over rows": (over_rows, nn.MSELoss(), regression_episodes, "batched"),
    "average pooling": (pooled, nn.CrossEntropyLoss(), image_episodes, "batched"),
    "logsumexp": (Shaped, F.mse_loss, regression_episodes, "vmap"),
    "a custom loss": (lambda: nn.Linear(1, 1), F.smooth_l1_loss, regression_episodes, "vmap"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_auto_picks_the_fastest_execution_and_agrees_with_the_loop(name):
    build, loss, make, expected = NETWORKS[name]
    model = build()
    assert agrees_with_the_loop(model, loss, make(), GradientDescent(model, 2, rate=0.1)) == expected


def test_control_flow_falls_back_to_the_loop_with_a_warning():
    model, episodes = Branching(), regression_episodes()
    learner = MetaLearner(model, GradientDescent(model, 2), F.mse_loss)
    with pytest.warns(UserWarning, match="tasks run one after another"):
        learner.meta_loss(episodes)
    learner.meta_loss(episodes)


def test_an_execution_that_is_unknown_or_cannot_run_the_network_is_refused():
    model = Shaped()
    with pytest.raises(UsageError, match=r"'batched' cannot run this model .*logsumexp"):
        MetaLearner(model, GradientDescent(model, 1), F.mse_loss, execution="batched")
    with pytest.raises(UsageError, match="'parallel' must be one of auto, loop, vmap, batched"):
        MetaLearner(model, GradientDescent(model, 1), F.mse_loss, execution="parallel")


@pytest.mark.parametrize("adapted", ["all", "head"])
@pytest.mark.parametrize("execution", ["loop", "vmap", "batched"])
def test_features_are_the_inputs_of_the_last_layer_and_differentiable_twice(execution, adapted):
    torch.manual_seed(0)
    model, x = Residual(), image_episodes().query_x
    layout = Layout.of(model, adapted=lambda name: adapted == "all" or name.startswith("head."))
    learner = MetaLearner(model, GradientDescent(layout, 1), F.cross_entropy, execution=execution)
    body = nn.Sequential(model.a, model.norm, nn.ReLU())

    def plain(images: Tensor) -> Tensor:
        lower = body(images)
        return torch.relu(model.b(lower) + lower).mean((2, 3))

    def features() -> Tensor:
        point = layout.flatten(model).expand(len(x), -1)
        return learner.execution.features(point, x)

    found, expected = features(), torch.stack([plain(images) for images in x])
    assert found.shape == (*x.shape[:2], 4)
    assert distance(found, expected) < 1e-12
    for one, other in zip(*(twice(values, model.a.weight) for values in (found, expected)), strict=True):
        assert distance(one, other) < 1e-10


def twice(values: Tensor, parameter: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the sum of squares of values, and the gradient of its own sum of squares."""
    (first,) = torch.autograd.grad(values.square().sum(), parameter, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), parameter)
    return first, second


def test_features_of_a_network_that_cannot_be_mapped_come_from_the_loop():
    model = nn.Sequential(Branching(), nn.Linear(1, 2))
    learner = MetaLearner(model, GradientDescent(model, 1), F.mse_loss)
    point, x = learner.rule.layout.flatten(model).expand(3, -1), torch.randn(3, 4, 1)
    with pytest.warns(UserWarning, match="tasks run one after another"):
        found = learner.execution.features(point, x)
    assert distance(found, model[0](x)) < 1e-12


@pytest.mark.parametrize("execution", ["loop", "vmap", "batched"])
def test_parameters_outside_the_layout_are_shared_and_still_meta_learned(execution):
    model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))
    rule = GradientDescent(Layout.of(model, adapted=lambda name: name.startswith("2.")), 2, rate=0.1)
    learner = MetaLearner(model, rule, F.mse_loss, execution=execution)
    learner.meta_loss(regression_episodes()).backward()
    assert rule.layout.layers == ["2"]
    assert model[0].weight.grad.abs().sum() > 0


class Meanwhile(nn.Module):
    """Calls another network, in another thread, while its own forward pass is traced."""

    def __init__(self, call_other: Callable[[], None]) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.call_other = call_other

    def forward(self, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self.call_other).result()
        return self.layer(x)


def test_building_a_learner_does_not_disturb_a_network_in_another_thread():
    other = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
    outputs: list[Tensor] = []
    model = Meanwhile(lambda: outputs.append(other(torch.ones(2, 1))))
    learner = MetaLearner(model, GradientDescent(model, 1), F.mse_loss)
    assert learner.execution.name == "batched"
    assert torch.equal(outputs[0], other(torch.ones(2, 1)))


@pytest.mark.parametrize("loss", [F.mse_loss, nn.MSELoss(), nn.MSELoss(reduction="sum")])
@pytest.mark.parametrize("shape", [(10,), (10, 2)])
def test_targets_of_another_shape_than_the_outputs_are_refused(loss, shape):
    model = nn.Sequential(nn.Linear(1, 4), nn.ReLU(), nn.Linear(4, 1))
    messages = set()
    for execution in ("loop", "vmap", "batched"):
        learner = MetaLearner(model, GradientDescent(model, 2), loss, execution=execution)
        follow = learner.path
        for adapted in (learner.adapt, lambda x, y, path=follow: path(x[None], y[None], order="second")):
            with pytest.raises(UsageError, match="needs equal shapes") as refused:
                adapted(torch.randn(10, 1), torch.randn(shape))
            messages.add(str(refused.value))
    assert len(messages) == 1


@pytest.mark.parametrize("middle", [nn.ReLU, nn.Mish])  # hand-written, and left to autograd
@pytest.mark.parametrize(("takes", "given"), [(3, 2), (3, 1), (1, 3)])
def test_inputs_with_another_number_of_features_are_refused(middle, takes, given):
    """With one feature and three examples, products of the two would be broadcast."""
    model = nn.Sequential(nn.Linear(takes, 4), middle(), nn.Linear(4, 1))
    learner = MetaLearner(model, GradientDescent(model, 1), F.mse_loss)
    x, y = torch.randn(2, 3, given), torch.randn(2, 3, 1)
    message = rf"inputs: the layer Linear\({takes}, 4\) takes {takes} features, got {given}"
    with pytest.raises(UsageError, match=message):
        learner.meta_loss(Episodes(x, y, x, y))
    with pytest.raises(UsageError, match=message):
        learner.adapt(x[0], y[0])


@pytest.mark.parametrize("execution", ["loop", "vmap", "batched"])
@pytest.mark.parametrize("kind", ["mlp", "conv"])
def test_autocast_computes_in_low_precision_and_keeps_parameters_in_theirs(kind, execution):
    """Hand-written derivatives would mix dtypes."""
    model, loss, episodes = small_problem(kind)
    model, episodes = model.float(), episodes.to(dtype=torch.float32)
    learner = MetaLearner(model, GradientDescent(model, 2), loss, execution=execution)
    examples = episodes.support_x[0], episodes.support_y[0]

    def results() -> list[Tensor]:
        with torch.no_grad():
            predicted = learner.predictions_per_step(*episodes.tensors()[:3]).outputs[-1]
        adapted = nn.utils.parameters_to_vector(learner.adapt(*examples).parameters())
        return [learner.meta_loss(episodes), meta_gradient(learner, episodes), adapted, predicted.float()]

    with torch.autocast("cpu", torch.bfloat16):
        low = results()
    for found, exact in zip(low, results(), strict=True):
        assert found.dtype == torch.float32
        assert 1e-7 < distance(found, exact) < 0.2


def test_ignored_labels_do_not_count_in_the_mean():
    outputs, labels = torch.randn(3, 4, 3), torch.tensor([[0, 1, -100, -100], [2, 1, 0, 0], [-100, 1, 2, 0]])
    expected = torch.stack([F.cross_entropy(o, y) for o, y in zip(outputs, labels, strict=True)])
    assert distance(per_task(F.cross_entropy)(outputs, labels), expected) < 1e-12
    plain = F.cross_entropy(outputs[1], labels[1], reduction="none").mean()
    assert torch.equal(per_task(F.cross_entropy)(outputs[1:2], labels[1:2])[0], plain)


@pytest.mark.parametrize("head", ["learned", "prototypes"])
@pytest.mark.parametrize("execution", ["loop", "vmap", "batched"])
def test_threads_that_share_a_learner_do_not_disturb_each_other(execution, head):
    model = mlp(4, (32,), 3)
    rule = GradientDescent(model, 10, rate=0.1)
    learner = MetaLearner(model, rule, F.cross_entropy, execution=execution, head=head)
    tasks = [(torch.randn(30, 4), torch.arange(30) % 3) for _ in range(24)]
    before = {name: (parameter, parameter.clone()) for name, parameter in model.named_parameters()}

    def adapted(task: tuple[Tensor, Tensor]) -> Tensor:
        return rule.layout.flatten(learner.adapt(*task)).detach()

    expected = [adapted(task) for task in tasks]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(adapted, tasks))
    finally:
        sys.setswitchinterval(interval)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert dict(model.named_parameters()).keys() == before.keys()
    for name, parameter in model.named_parameters():
        assert parameter is before[name][0]
        assert torch.equal(parameter, before[name][1])


def test_a_module_that_is_called_twice_keeps_its_first_name():
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    learner = MetaLearner(model, GradientDescent(model, 2), F.mse_loss)
    loop = MetaLearner(model, GradientDescent(model, 2), F.mse_loss, execution="loop")
    assert learner.execution.name == "batched"
    x = torch.randn(3, 4, 2)
    assert distance(learner.path(x, -x).end, loop.path(x, -x).end) < 1e-12


class Tied(nn.Module):
    """The two layers in the middle share their parameters of these names."""

    def __init__(self, layers: list[nn.Module], shared: tuple[str, ...]) -> None:
        super().__init__()
        self.first, self.a, self.b, self.last = layers
        for name in shared:
            setattr(self.b, name, getattr(self.a, name))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.b(torch.tanh(self.a(torch.tanh(self.first(x))))))
        return self.last(x.flatten(1))


class Root(nn.Module):
    """A parameter of the network itself that one of its layers uses."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 4))
        self.a, self.last = nn.Linear(1, 4), nn.Linear(4, 1)
        self.last.weight = self.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.a(x)))


def tied_linear(*shared: str) -> nn.Module:
    return Tied([nn.Linear(1, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)], shared)


def tied_convolutions() -> nn.Module:
    convolutions = [nn.Conv2d(channels, 4, 3, padding=1) for channels in (2, 4, 4)]
    return Tied([*convolutions, nn.Linear(4 * 8 * 8, 3)], ("weight", "bias"))


def repeated_layer() -> nn.Module:
    layer = nn.Linear(4, 4)
    return Tied([nn.Linear(1, 4), layer, layer, nn.Linear(4, 1)], ())


TIED = {
    "weights": (lambda: tied_linear("weight"), F.mse_loss, regression_episodes),
    "biases": (lambda: tied_linear("bias"), F.mse_loss, regression_episodes),
    "convolutions": (tied_convolutions, F.cross_entropy, image_episodes),
    "of the network itself": (Root, F.mse_loss, regression_episodes),
    "a layer of two names": (repeated_layer, F.mse_loss, regression_episodes),
}


@pytest.mark.parametrize("name", TIED)
@pytest.mark.parametrize("execution", ["auto", "vmap", "loop"])
def test_tied_parameters_adapt_together(name, execution):
    """Compared with steps on a network that is copied and whose gradients `backward` adds up."""
    build, loss, make = TIED[name]
    model, episodes = build(), make()
    learner = MetaLearner(model, GradientDescent(model, 2, rate=0.3), loss, execution=execution, guard=False)
    before, names = dict(model.named_parameters()), set(model.state_dict())
    expected = []
    for x, y, queries, _ in zip(*episodes.tensors(), strict=True):
        network = copy.deepcopy(model)
        for _ in range(2):
            network.zero_grad()
            loss(network(x), y).backward()
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter -= 0.3 * parameter.grad
        expected.append(network(queries))
        assert distance(learner.adapt(x, y)(queries), expected[-1]) < 1e-10
    with torch.no_grad():
        predictions = learner.predictions_per_step(*episodes.tensors()[:3]).outputs
    assert distance(predictions[-1], torch.stack(expected)) < 1e-10
    loop = MetaLearner(model, learner.rule, loss, execution="loop", guard=False)
    assert distance(meta_gradient(learner, episodes), meta_gradient(loop, episodes)) < 1e-10
    after = dict(model.named_parameters())
    assert all(after[name] is parameter for name, parameter in before.items())
    assert set(model.state_dict()) == names


def test_the_meta_gradient_of_a_repeated_layer_is_that_of_two_tied_ones():
    repeated, tied, episodes = repeated_layer(), tied_linear("weight", "bias"), regression_episodes()
    tied.load_state_dict(repeated.state_dict())
    learners = [
        MetaLearner(model, GradientDescent(model, 2, rate=0.3), F.mse_loss, execution="loop")
        for model in (repeated, tied)
    ]
    assert distance(*(meta_gradient(learner, episodes) for learner in learners)) < 1e-12


@pytest.mark.parametrize("name", ["weights", "biases", "of the network itself"])
def test_tied_parameters_that_do_not_adapt_are_shared_by_tasks(name):
    build, loss, make = TIED[name]
    layout = Layout.of(model := build(), lambda name: name.startswith("last."))
    assert agrees_with_the_loop(model, loss, make(), GradientDescent(layout, 2, rate=0.3)) == "batched"


class Careless(nn.Module):
    """Would overwrite the features that all steps start from."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 4, 3), nn.Linear(4, 3)
        self.pool, self.drop = nn.AdaptiveAvgPool2d(1), nn.Dropout(0.5, inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.tanh(self.pool(self.conv(x)))).flatten(1))


PARTLY_ADAPTED = {
    "head of a Conv-2": (conv4, {"size": 8, "width": 4, "blocks": 2}, "head", "conv1"),
    "last block of a ResNet-12": (resnet12, {"size": 16, "width": 2}, ("3", "6"), "0.conv1"),
    "head of a ResNet-12": (resnet12, {"size": 16, "width": 2}, "6", "3.shortcut"),
}


@pytest.mark.parametrize("name", PARTLY_ADAPTED)
@pytest.mark.parametrize("order", ["second", "first"])
def test_layers_below_the_adapted_ones_run_once_per_path(name, order, monkeypatch):
    build, settings, adapted, below = PARTLY_ADAPTED[name]
    episodes = image_episodes(size=settings["size"])
    gradients, calls, forward = [], [], nn.Conv2d.forward
    for execution in ("batched", "loop"):
        torch.manual_seed(0)
        model = build(3, channels=2, **settings)
        layout = Layout.of(model, lambda name: name.startswith(adapted))
        rule, seen = GradientDescent(layout, 3, rate=0.05), []
        learner = MetaLearner(model, rule, F.cross_entropy, execution=execution)
        spy = lambda conv, x, seen=seen: seen.append(conv) or forward(conv, x)  # noqa: E731
        with monkeypatch.context() as patch:  # a hook would change the execution
            patch.setattr(nn.Conv2d, "forward", spy)
            gradients.append(meta_gradient(learner, episodes, order))
        calls.append(sum(conv is model.get_submodule(below) for conv in seen))
    assert distance(*gradients) < 1e-12
    # support and queries; the loop runs 2 tasks, 3 steps, guard, queries
    assert calls == [2, 2 * (3 + 1 + 1)]


def test_a_layer_in_place_leaves_what_the_next_step_needs():
    model = Careless()
    layout = Layout.of(model, lambda name: name.startswith("head"))
    learner = MetaLearner(model, GradientDescent(layout, 2), F.cross_entropy, execution="batched")
    with torch.no_grad():
        prepared = learner.execution.prepare(image_episodes().support_x)
        (features,) = (value.data for value in prepared.values.values())
        before = features.clone()
        learner.execution.predict(layout.flatten(model).expand(2, -1), prepared)
    assert torch.equal(features, before)


class InPlace(nn.Module):
    """Reads the features again after, or before, an operation that may overwrite them."""

    def __init__(self, change: Callable[[InPlace, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(2, 4, 3), nn.Conv2d(2, 4, 3), nn.Linear(4 * 36, 3)
        self.relu, self.flat, self.change = nn.ReLU(inplace=True), nn.Flatten(), change

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.change(self, self.a(x), self.b(x)).flatten(1))


OVERWRITING = {
    "a layer": lambda net, h, other: net.relu(h) + h,
    "a function": lambda net, h, other: F.leaky_relu(h, 0.2, inplace=True) + h,
    "a function, by position": lambda net, h, other: F.leaky_relu(h, 0.2, True) + h,
    "a sum": lambda net, h, other: operator.iadd(h, other) + h,
    "a view": lambda net, h, other: net.relu(net.flat(h)) + net.flat(h),
}
HARMLESS = {
    "a layer": lambda net, h, other: net.relu(h) + other,
    "a function, by position": lambda net, h, other: F.leaky_relu(h, 0.2, True) + other,
    "a sum": lambda net, h, other: torch.relu(operator.iadd(h, other)) + other,
    "a shape": lambda net, h, other: net.relu(h).view(h.size(0), -1),
    "not in place": lambda net, h, other: F.leaky_relu(h, 1) + h,
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [*((each, "vmap") for each in OVERWRITING.values()), *((each, "batched") for each in HARMLESS.values())],
)
def test_operations_in_place_are_batched_unless_others_read_what_they_overwrite(change, expected):
    model = InPlace(change)
    rule = GradientDescent(model, 2, rate=0.1)
    assert agrees_with_the_loop(model, F.cross_entropy, image_episodes(), rule) == expected


class Transformer(nn.Module):
    """A layer of PyTorch's transformer, then attention written as a function, with a mask of booleans."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(1, 4), nn.Linear(4, 1)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(self.embed(x.unsqueeze(-1)))
        mask = torch.tensor([[True, False, True], [True, True, True], [False, True, True]])
        return self.head(F.scaled_dot_product_attention(x, x, x, mask).mean(1))


@pytest.mark.parametrize("execution", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("training", [True, False])
def test_attention_is_differentiated_twice(execution, training):
    """By finite differences of the query loss after two steps."""
    model = Transformer().train(training)
    episodes = Episodes(*(torch.randn(2, 4, n) for n in (3, 1, 3, 1)))
    rule = GradientDescent(model, 2, rate=0.3)
    learner = MetaLearner(model, rule, F.mse_loss, execution=execution, guard=False)
    gradients = torch.autograd.grad(learner.meta_loss(episodes), list(model.parameters()))
    loss = partial(learner.query_loss, episodes)
    assert slope_error(loss, list(model.parameters()), gradients) < 1e-6
    point = rule.layout.flatten(model).expand(2, -1)
    with torch.no_grad():
        plain = torch.stack([model(x) for x in episodes.query_x])
        assert distance(learner.outputs_at(point, episodes.query_x), plain) < 1e-10


class AttendsToMany(nn.Module):
    """Attends if there are more than four examples."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(1, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        if len(x) > 4:
            x = F.scaled_dot_product_attention(*[x[None, None]] * 3)[0, 0]
        return self.head(x)


@pytest.mark.parametrize("execution", ["auto", "vmap", "loop"])
def test_a_network_that_attends_in_later_calls_only_is_differentiated_twice(execution):
    model = AttendsToMany()
    rule = GradientDescent(model, 2, rate=0.3)
    learner = MetaLearner(model, rule, F.mse_loss, execution=execution, guard=False)
    few, many = (torch.randn(2, count, 1) for count in (3, 6))
    learner.meta_loss(Episodes(few, few, few, few))
    episodes = Episodes(many, -many, many, -many)
    gradients = torch.autograd.grad(learner.meta_loss(episodes), list(model.parameters()))
    loss = partial(learner.query_loss, episodes)
    assert slope_error(loss, list(model.parameters()), gradients) < 1e-6


@pytest.mark.parametrize(
    ("build", "expected"), [(lambda: nn.Sequential(nn.Linear(1, 1)), False), (Shaped, True)]
)
def test_only_networks_that_may_attend_run_in_the_context_of_attention(build, expected, monkeypatch):
    entered = []
    monkeypatch.setattr(CorrectedOperations, "__enter__", lambda self: entered.append(self) or self)
    monkeypatch.setattr(CorrectedOperations, "__exit__", lambda self, *_: None)
    model, episodes = build(), regression_episodes()
    learner = MetaLearner(model, GradientDescent(model, 2), F.mse_loss, execution="loop")
    learner.meta_loss(episodes)
    assert bool(entered) is expected
