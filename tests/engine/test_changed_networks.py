"""A network that changes after its learner was built: every execution sees the change, or refuses it."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from pathaware import Episodes, GradientDescent, Layout, MetaLearner, UsageError
from pathaware.training.config import Config
from tests.conftest import (
    agrees_with_the_loop,
    distance,
    image_episodes,
    meta_gradient,
    regression_episodes,
    small_problem,
)
from tests.training.fits import in_memory

pytestmark = pytest.mark.filterwarnings("ignore:vmap cannot run this model", "ignore:There is a performance")


class Switched(nn.Module):
    """Its code depends on attributes, which a trace reads once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(1, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.act, self.skip, self.repeats = nn.ReLU(), True, [1]

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.first(x))
        for _ in range(self.repeats[0]):
            x = self.middle(x) + x if self.skip else self.middle(x)
        return self.last(torch.tanh(x) if self.training else x)


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.act = nn.Conv2d(2, 4, 3, padding=1), nn.ReLU()
        self.norm = nn.BatchNorm2d(4, track_running_stats=False)
        self.pool, self.flat, self.last = nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.flat(self.pool(self.act(self.norm(self.first(x))))))


def other_forward(model: nn.Module) -> None:
    first = model.first
    first.forward = lambda x: type(first).forward(first, x).square()


def another_class(model: nn.Module) -> None:
    class Squared(type(model.first)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).square()

    model.first.__class__ = Squared


def another_first(model: nn.Module) -> None:
    model.first = copy.deepcopy(model.first)
    nn.init.normal_(model.first.weight)


def another_last(model: nn.Module) -> None:
    model.last = nn.Linear(model.last.in_features, model.last.out_features)


def assigned_state(model: nn.Module) -> None:
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()}, assign=True)


Change = Callable[[nn.Module], object]
MORE_THAN_A_TYPE: dict[str, Change] = {
    "hook before": lambda m: m.last.register_forward_pre_hook(lambda _, x: (2 * x[0],)),
    "hook after": lambda m: m.first.register_forward_hook(lambda _, x, y: y.square()),
    "hook of the network": lambda m: m.register_forward_hook(lambda _, x, y: 2 * y),
    "hook of the gradient": lambda m: m.last.register_full_backward_hook(lambda _, gx, gy: (2 * gx[0],)),
    "hook before the gradient": lambda m: m.last.register_full_backward_pre_hook(lambda _, gy: (2 * gy[0],)),
    "other forward": other_forward,
}
"""Layers then compute more than their types say."""
EVERYWHERE: dict[str, Change] = {
    **MORE_THAN_A_TYPE,
    "another class": another_class,
    "another layer": lambda m: setattr(m, "act", nn.Tanh()),
    "another first": another_first,
    "another last": another_last,
    "another weight": lambda m: setattr(m.first, "weight", nn.Parameter(torch.randn_like(m.first.weight))),
    "assigned state": assigned_state,
}
OF_SWITCHED: dict[str, Change] = {
    "evaluation": nn.Module.eval,
    "without skip": lambda m: setattr(m, "skip", False),
    "repeated": lambda m: m.repeats.__setitem__(0, 2),
}
OF_IMAGES: dict[str, Change] = {"other norm": lambda m: setattr(m.norm, "eps", 0.5)}
REFUSED = {"vmap": list(EVERYWHERE)[3:5], "batched": list(EVERYWHERE)[:7]}
CHANGES = [
    *((Switched, name) for name in EVERYWHERE | OF_SWITCHED),
    *((Images, name) for name in EVERYWHERE | OF_IMAGES),
]


def learner_of(model: nn.Module, execution: str, adapted: str = "") -> MetaLearner:
    layout = Layout.of(model, lambda name: name.startswith(adapted))
    loss = F.mse_loss if isinstance(model, Switched) else F.cross_entropy
    return MetaLearner(model, GradientDescent(layout, 2, rate=0.1), loss, execution=execution)


def results(learner: MetaLearner, episodes: Episodes) -> list[Tensor]:
    """The meta-gradient, predictions, and those of the adapted network."""
    gradient = meta_gradient(learner, episodes)
    x, y, queries, _ = episodes.tensors()
    with torch.no_grad():
        predictions = learner.predictions_per_step(x, y, queries).outputs[-1]
        return [gradient, predictions, learner.adapt(x[0], y[0])(queries[0])]


@pytest.mark.parametrize("adapted", ["", "first", "last"])
@pytest.mark.parametrize(("build", "change"), CHANGES)
def test_all_executions_see_a_change_of_the_network(build, change, adapted):
    """Compared with a learner that is built afterwards; `batched` may refuse, but not ignore it."""
    model = build()
    episodes = regression_episodes() if build is Switched else image_episodes()
    learners = [learner_of(model, name, adapted) for name in ("auto", "loop", "vmap", "batched")]
    before, *_ = [results(learner, episodes) for learner in learners]
    (EVERYWHERE | OF_SWITCHED | OF_IMAGES)[change](model)
    expected = results(learner_of(model, "loop", adapted), episodes)
    assert max(distance(one, other) for one, other in zip(before, expected, strict=True)) > 1e-3
    for learner in learners:
        if change in REFUSED.get(learner.execution_name, []):
            with pytest.raises(UsageError, match=rf"'{learner.execution_name}' cannot run this model"):
                results(learner, episodes)
            continue
        found = results(learner, episodes)
        for one, other in zip(found, expected, strict=True):
            assert distance(one, other) < 1e-10


def weight_norm_by_a_hook(model: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(model.first)


@pytest.mark.parametrize("change", [*MORE_THAN_A_TYPE.values(), weight_norm_by_a_hook])
def test_a_network_that_computes_more_than_its_types_say_is_not_batched(change):
    model = Switched()
    change(model)
    rule = GradientDescent(model, 2, rate=0.1)
    backward = any(layer._backward_hooks or layer._backward_pre_hooks for layer in model.modules())
    expected = "loop" if backward else "vmap"
    assert agrees_with_the_loop(model, F.mse_loss, regression_episodes(), rule) == expected
    with pytest.raises(UsageError, match=r"'batched' cannot run this model .*(hooks|forward method)"):
        MetaLearner(model, rule, F.mse_loss, execution="batched")


def test_hooks_of_all_modules_are_seen():
    model, episodes = Switched(), regression_episodes()
    auto, loop = learner_of(model, "auto"), learner_of(model, "loop")
    plain = results(auto, episodes)
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, outputs: 0.5 * outputs)
    try:
        found, expected = results(auto, episodes), results(loop, episodes)
    finally:
        handle.remove()
    assert distance(plain[0], expected[0]) > 1e-3
    assert all(distance(one, other) < 1e-10 for one, other in zip(found, expected, strict=True))


def test_the_fast_execution_returns_when_the_last_hook_is_removed():
    model = Switched()
    learner = learner_of(model, "auto")
    handles = [layer.register_forward_hook(lambda *_: None) for layer in (model.first, model.last)]
    assert learner.execution.name == "vmap"
    handles[0].remove()
    assert learner.execution.name == "vmap"
    handles[1].remove()
    assert learner.execution.name == "batched"


@pytest.mark.parametrize("execution", ["auto", "loop"])
def test_values_may_change_without_another_choice_of_execution(execution):
    model, episodes = Images(), image_episodes()
    learner = learner_of(model, execution)
    chosen = learner.execution
    results(learner, episodes)
    learner.meta_loss(episodes).backward()
    torch.optim.SGD(learner.parameters(), 0.1).step()
    model.load_state_dict({k: torch.randn_like(v) for k, v in model.state_dict().items()})
    learner.float().double()
    model.requires_grad_(False).requires_grad_(True)
    assert learner.execution is chosen


@pytest.mark.parametrize("execution", ["auto", "loop", "vmap"])
def test_frozen_parameters_still_adapt(execution):
    """The meta-gradient of the others is what it was."""
    model, episodes = Images(), image_episodes()
    learner = learner_of(model, execution, "last")
    gradients = []
    for _ in range(2):
        gradients.append(torch.autograd.grad(learner.meta_loss(episodes), list(model.first.parameters())))
        model.last.requires_grad_(False)
    for before, after in zip(*gradients, strict=True):
        assert distance(after, before) < 1e-10


WITHOUT_THE_PARAMETERS: dict[str, Change] = {
    "another width": lambda m: setattr(m, "last", nn.Linear(4, 2)),
    "without bias": lambda m: setattr(m.last, "bias", None),
    "weight norm": lambda m: nn.utils.parametrizations.weight_norm(m.last),
    "tied": lambda m: setattr(m.last, "bias", m.first.bias),
}


@pytest.mark.parametrize("change", WITHOUT_THE_PARAMETERS)
@pytest.mark.parametrize("execution", ["auto", "loop", "vmap", "batched"])
def test_a_network_without_the_adapted_parameters_is_refused(execution, change):
    model, episodes = Switched(), regression_episodes()
    learner = learner_of(model, execution)
    WITHOUT_THE_PARAMETERS[change](model)
    for use in (learner.meta_loss, lambda episodes: learner.adapt(*(t[0] for t in episodes.tensors()[:2]))):
        with pytest.raises(UsageError, match=r"built for another network; last\.(weight|bias)"):
            use(episodes)


def test_a_batch_norm_with_running_statistics_is_refused_later_too():
    model, episodes = Images(), image_episodes()
    learner = learner_of(model, "loop")
    model.norm = nn.BatchNorm2d(4)
    with pytest.raises(UsageError, match="norm keeps running statistics"):
        learner.meta_loss(episodes)


@pytest.mark.parametrize("execution", ["auto", "loop", "vmap"])
def test_a_copy_of_a_learner_has_a_network_of_its_own(execution):
    model, episodes = Switched(), regression_episodes()
    learner = learner_of(model, execution, "last")
    before = results(learner, episodes)
    other = copy.deepcopy(learner)
    nn.init.normal_(other.model.first.weight)
    expected = results(learner_of(other.model, "loop", "last"), episodes)
    for one, another in zip(results(other, episodes), expected, strict=True):
        assert distance(one, another) < 1e-10
    assert all(map(torch.equal, results(learner, episodes), before))


@pytest.mark.parametrize("adapted", ["", "first", "last"])
@pytest.mark.parametrize("build", [Switched, Images])
def test_parameters_may_be_replaced_for_one_call(build, adapted):
    """All parameters get a gradient, those that tasks share too."""
    model = build()
    episodes = regression_episodes() if build is Switched else image_episodes()
    learner = learner_of(model, "auto", adapted)
    chosen, expected = learner.execution, meta_gradient(learner, episodes)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.learner = learner

        def forward(self) -> Tensor:
            return self.learner.meta_loss(episodes)

    values = {
        f"learner.{name}": p.detach().clone().requires_grad_() for name, p in learner.named_parameters()
    }
    loss = functional_call(Loss(), values, ())
    gradients = torch.autograd.grad(loss, list(values.values()))
    assert distance(torch.cat([g.flatten() for g in gradients]), expected) < 1e-10
    assert learner.execution is chosen


class Focal(nn.CrossEntropyLoss):
    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        certain = outputs.softmax(-1).gather(1, targets[:, None])[:, 0]
        return (-((1 - certain) ** 2) * certain.log()).mean()


def with_decay(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets) + outputs.square().mean()


LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[[MetaLearner], object]]] = {
    "smoothed": (nn.CrossEntropyLoss(), lambda learner: setattr(learner.loss, "label_smoothing", 0.2)),
    "hooked": (
        nn.CrossEntropyLoss(),
        lambda learner: learner.loss.register_forward_hook(lambda _, x, y: 2 * y),
    ),
    "a subclass": (nn.CrossEntropyLoss(), lambda learner: setattr(learner, "loss", Focal())),
    "a class for a function": (F.cross_entropy, lambda learner: setattr(learner, "loss", Focal())),
    "a function": (F.cross_entropy, lambda learner: setattr(learner, "loss", with_decay)),
}


@pytest.mark.parametrize("execution", ["loop", "vmap", "batched"])
@pytest.mark.parametrize("name", LOSSES)
def test_another_loss_counts_as_if_the_learner_was_built_with_it(execution, name):
    first, change = LOSSES[name]
    model, _, episodes = small_problem("conv")
    rule = GradientDescent(model, 2)
    learner = MetaLearner(model, rule, copy.deepcopy(first), execution=execution)
    before = meta_gradient(learner, episodes)
    change(learner)
    expected = meta_gradient(MetaLearner(model, rule, learner.loss, execution="loop"), episodes)
    assert distance(expected, before) > 1e-3
    assert distance(meta_gradient(learner, episodes), expected) < 1e-10


def test_a_class_instead_of_a_loss_is_refused_when_it_is_used():
    model, _, episodes = small_problem("conv")
    learner = MetaLearner(model, GradientDescent(model, 2), F.cross_entropy)
    learner.loss = nn.CrossEntropyLoss
    with pytest.raises(UsageError, match="loss: CrossEntropyLoss must be a function or an instance"):
        learner.meta_loss(episodes)


@pytest.mark.parametrize("execution", ["loop", "vmap", "batched"])
def test_another_rule_may_adapt_other_parameters(execution):
    model, loss, episodes = small_problem("mlp")
    learner = MetaLearner(model, GradientDescent(model, 2), loss, execution=execution)
    learner.meta_loss(episodes)
    last = Layout.of(model, adapted=lambda name: name == learner.rule.layout.entries[-1].name)
    learner.rule = GradientDescent(last, 3)
    expected = MetaLearner(model, GradientDescent(last, 3), loss, execution="loop").meta_loss(episodes)
    assert distance(learner.meta_loss(episodes), expected) < 1e-10


def test_a_captured_iteration_is_captured_again_after_a_change():
    tables = {"problem": {"name": "sine"}, "method": {"name": "maml"}, "training": {"iterations": 3}}
    fit = in_memory(Config.from_dict(tables))
    resets: list[int] = []
    fit._reset = lambda: resets.append(fit.iteration)
    fit.advance()
    fit.objective.learner.model.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    fit.advance()
    fit.advance()
    assert resets == [1]


def test_evaluation_keeps_the_execution_unless_the_networks_code_reads_the_mode():
    plain = MetaLearner(model := Images(), GradientDescent(model), F.cross_entropy)
    chosen = plain.execution
    model.eval()
    assert plain.execution is chosen

    switched = MetaLearner(model := Switched(), GradientDescent(model), F.mse_loss)
    training = switched.execution
    model.eval()
    evaluation = switched.execution
    assert evaluation is not training
    for mode in (True, False, True):  # back and forth, as with a validation every few iterations
        model.train(mode)
        assert switched.execution is (training if mode else evaluation)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_training_with_validations_and_dropout_keeps_its_execution(dropout):
    problem = {"name": "classification", "data": "glyphs", "width": 4, "shots": 1, "queries": 2}
    training = {"iterations": 4, "validate": 2, "validation_tasks": 2, "dropout": dropout}
    fit = in_memory(Config.from_dict({"problem": problem, "method": {"name": "maml"}, "training": training}))
    found = {id(fit.objective.learner.execution)}
    while not fit.done:
        fit.advance()
        found.add(id(fit.objective.learner.execution))
    assert len(found) == 1
