"""The gradient of θ agrees with its definition, and a stopped stream resumes with identical numbers."""

from __future__ import annotations

import io
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from pathaware import UsageError
from pathaware.models import conv4
from pathaware.online.buffer import ReplaySample
from pathaware.online.learner import OnlineLearner, OnlineOrder
from tests.conftest import distance

RATE, PULL = 0.05, 0.7


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))


def items(count: int, size: int = 4) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(size, 2), torch.randn(size, 1)) for _ in range(count)]


def learner(model: nn.Module | None = None, **settings: object) -> OnlineLearner:
    return OnlineLearner(model or small_model(), F.mse_loss, rate=RATE, pull=PULL, **settings)


def written_out(
    model: nn.Module, theta: dict[str, Tensor], sample: ReplaySample, steps: int, loss=F.mse_loss
) -> Tensor:
    """The held-out loss of Algorithm 2, in plain PyTorch."""
    phi = theta
    for x, y in sample.learned:
        for _ in range(steps):
            pull = sum((phi[name] - theta[name]).square().sum() for name in theta)
            objective = loss(functional_call(model, phi, (x,)), y) + PULL / 2 * pull
            gradients = torch.autograd.grad(objective, list(phi.values()), create_graph=True)
            phi = {n: p - RATE * s for (n, p), s in zip(phi.items(), gradients, strict=True)}
    x, y = sample.held_out
    return loss(functional_call(model, phi, (x,)), y)


def at(theta: Tensor, each: OnlineLearner) -> dict[str, Tensor]:
    return each.rule.layout.views(theta)


@pytest.mark.parametrize("steps", [1, 2])
def test_the_gradient_of_theta_is_that_of_a_plain_loop(steps):
    each = learner(steps=steps)
    samples = [ReplaySample(tuple(items(n)), items(1)[0]) for n in (3, 1, 3, 0)]  # of several shapes
    theta = each.theta.requires_grad_()
    losses = [written_out(each.model, at(theta, each), sample, steps) for sample in samples]
    (expected,) = torch.autograd.grad(torch.stack(losses).mean(), theta)
    assert distance(each.meta_gradient(samples), expected) < 1e-12


def test_the_gradient_of_theta_is_that_of_a_plain_loop_with_batch_norm():
    model = conv4(3, size=8, channels=2, width=3, blocks=2)
    labels = torch.arange(6) % 3
    images = [(torch.randn(6, 2, 8, 8), labels) for _ in range(3)]
    each = OnlineLearner(model, F.cross_entropy, rate=RATE, pull=PULL)
    sample = ReplaySample(tuple(images[:2]), images[2])
    theta = each.theta.requires_grad_()
    loss = written_out(model, at(theta, each), sample, 1, F.cross_entropy)
    (expected,) = torch.autograd.grad(loss, theta)
    assert distance(each.meta_gradient([sample]), expected) < 1e-10


def test_the_gradient_of_theta_agrees_with_finite_differences():
    each = learner()
    sample = ReplaySample(tuple(items(4)), items(1)[0])
    theta, gradient, h = each.theta, each.meta_gradient([sample]), 1e-6
    gradients = []
    for direction in torch.eye(len(theta)):
        nearby = (_leaves(at(theta + sign * h * direction, each)) for sign in (1, -1))
        up, down = (written_out(each.model, point, sample, 1).item() for point in nearby)
        gradients.append((up - down) / (2 * h))
    assert distance(gradient, torch.tensor(gradients)) < 1e-7


def _leaves(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().requires_grad_() for name, value in parameters.items()}


def test_without_hessians_the_whole_path_moves_with_theta():
    """Each step moves towards θ by as much as it moves away from its start, so ∂φ⁺/∂θ = I."""
    each = learner(order="first")
    sample = ReplaySample(tuple(items(4)), items(1)[0])
    phi = each.theta[None]
    for x, y in sample.learned:
        phi = each.rule.step(0, [each.theta[None], phi], each.meta.gradient_at(phi, x[None], y[None])[1])
    x, y = sample.held_out
    _, gradient = each.meta.gradient_at(phi, x[None], y[None])
    assert distance(each.meta_gradient([sample]), gradient[0]) < 1e-12


def test_through_the_last_step_theta_counts_by_its_pull_only():
    """The same by autograd: φ is constant, then one step, and the loss at its end."""
    each = learner(order="last", every=3)
    first, last, held_out = items(3)
    each.partial_fit(*first)
    before = each.phi
    each.partial_fit(*last)
    theta = each.theta.requires_grad_()
    _, gradient = each.meta.gradient_at(before[None], last[0][None], last[1][None])
    after = before - RATE * (gradient[0] + PULL * (before - theta))
    loss = F.mse_loss(functional_call(each.model, at(after, each), (held_out[0],)), held_out[1])
    (expected,) = torch.autograd.grad(loss, theta)
    assert distance(each.meta_gradient([ReplaySample((first, last), held_out)]), expected) < 1e-12


def test_by_the_pull_alone_theta_moves_towards_phi_as_in_reptile():
    each = learner(order="pull", every=3, descent="sgd", meta_rate=0.5)
    for item in items(2):
        each.partial_fit(*item)
    theta, phi = each.theta.requires_grad_(), each.phi
    (expected,) = torch.autograd.grad(PULL / 2 * (phi - theta).square().sum(), theta)
    each.partial_fit(*items(1)[0])
    assert distance(each.theta, theta.detach() - 0.5 * expected) < 1e-12
    assert torch.equal(each.phi, phi)


def test_an_item_moves_phi_as_written_and_leaves_theta():
    each = learner(every=3)
    theta = each.theta
    parameters = _leaves(at(theta, each))
    for x, y in items(2):
        pull = sum((parameters[n] - at(theta, each)[n]).square().sum() for n in parameters)
        objective = F.mse_loss(functional_call(each.model, parameters, (x,)), y) + PULL / 2 * pull
        gradients = torch.autograd.grad(objective, list(parameters.values()))
        parameters = _leaves(
            {n: p - RATE * s for (n, p), s in zip(parameters.items(), gradients, strict=True)}
        )
        each.partial_fit(x, y)
    assert distance(each.phi, torch.cat([p.flatten() for p in parameters.values()])) < 1e-12
    assert torch.equal(each.theta, theta)
    assert len(each.buffer) == 0


def test_every_kth_item_moves_theta_and_leaves_phi():
    each = learner(every=3, descent="sgd", meta_rate=0.5)
    seen = items(3)
    for item in seen[:2]:
        each.partial_fit(*item)
    theta, phi = each.theta, each.phi
    gradient = each.meta_gradient([ReplaySample(tuple(seen[:2]), seen[2])])
    each.partial_fit(*seen[2])
    assert distance(each.theta, theta - 0.5 * gradient) < 1e-12
    assert torch.equal(each.phi, phi)
    (sample,) = each.buffer
    assert [torch.equal(a, b) for a, b in zip(sample.held_out, seen[2], strict=True)] == [True, True]
    assert len(sample.learned) == 2


def test_a_new_data_set_begins_at_theta():
    each = learner(every=2)
    for item in items(4):
        each.partial_fit(*item)
    assert not torch.equal(each.phi, each.theta)
    each.begin()
    assert torch.equal(each.phi, each.theta)


def test_predictions_are_those_of_a_network_with_phi():
    each = learner(every=3)
    for item in items(5):
        each.partial_fit(*item)
    x = torch.randn(6, 2)
    assert distance(each.predict(x), each.network()(x)) < 1e-12
    assert distance(each.predict(x), each.model(x)) > 1e-6


def test_what_is_learned_stays_when_the_callers_tensors_change():
    each = learner(every=2)
    x, y = items(1)[0]
    each.partial_fit(x, y)
    kept = x.clone()
    x.zero_()
    each.partial_fit(*items(1)[0])
    (sample,) = each.buffer
    assert torch.equal(sample.learned[0][0], kept)


def test_a_long_data_set_leaves_a_trail_of_bounded_length():
    each = learner(every=10, trail=3)
    seen = items(10)
    for item in seen:
        each.partial_fit(*item)
    (sample,) = each.buffer
    assert [torch.equal(a[0], b[0]) for a, b in zip(sample.learned, seen[6:9], strict=True)] == [True] * 3


def linear(**settings: object) -> OnlineLearner:
    return learner(nn.Linear(2, 1), every=2, descent="sgd", meta_rate=0.1, **settings)


def huge() -> tuple[Tensor, Tensor]:
    """An item whose loss and gradient are not finite."""
    return torch.full((3, 2), 1e200), torch.ones(3, 1)


def test_a_path_that_ran_away_does_not_move_theta_and_others_still_do():
    each = linear()
    theta, usual = each.theta, items(2)
    each.partial_fit(*huge())
    each.partial_fit(*items(1)[0])
    assert torch.equal(each.theta, theta)
    each.begin()
    gradient = each.meta_gradient([ReplaySample((usual[0],), usual[1])])
    each.buffer.add(ReplaySample((huge(),), items(1)[0]), torch.Generator())
    for item in usual:
        each.partial_fit(*item)  # and the sample before is drawn along
    assert distance(each.theta, theta - 0.1 * gradient) < 1e-12
    assert len(each.buffer) == 2


@pytest.mark.parametrize("order", get_args(OnlineOrder))
@pytest.mark.parametrize("meta_steps", [1, 2])
def test_a_sample_that_is_not_finite_never_enters_the_buffer(order, meta_steps):
    each = linear(order=order, meta_steps=meta_steps)
    for learned, held_out in [(huge(), items(1)[0]), (items(1)[0], huge())]:
        each.begin()
        each.partial_fit(*learned)
        each.partial_fit(*held_out)
        assert len(each.buffer) == each.buffer.seen == 0
    each.begin()
    for item in items(2):
        each.partial_fit(*item)
    assert len(each.buffer) == each.buffer.seen == 1


@pytest.mark.parametrize("size", [float("nan"), 1e200])  # of 1e200, the loss is infinite, its gradient is not
def test_with_the_last_step_only_an_item_that_is_not_finite_leaves_theta(size):
    each = linear(order="last")
    for item in items(2):
        each.partial_fit(*item)  # the buffer has a sample of another data set
    each.begin()
    each.partial_fit(*items(1)[0])
    theta = each.theta
    each.partial_fit(torch.ones(3, 2), torch.full((3, 1), size))
    assert torch.equal(each.theta, theta)
    assert len(each.buffer) == 1


def test_gradients_are_counted():
    each = learner(every=3, replay=2, steps=2)
    learned, judged = 2 * 2, 2 * 4 + 1  # two items, two steps each; the same with Hessians, and the end
    for turn, replayed in enumerate((1, 2, 2), 1):  # the newest alone, then with one more
        each.begin()
        before = each.gradients
        for item in items(3):
            each.partial_fit(*item)
        assert each.gradients - before == learned + replayed * judged, turn


@pytest.mark.parametrize(
    "settings", [{}, {"descent": "sgd", "meta_rate": 0.1}, {"order": "last"}, {"forget": "oldest"}]
)
def test_a_stopped_stream_resumes_with_identical_numbers(settings):
    stream = [items(7) for _ in range(6)]
    settings = {"every": 2, "replay": 3, "buffer": 5, **settings}

    def feed(each: OnlineLearner, data_sets: list[list[tuple[Tensor, Tensor]]], begin: bool = True) -> None:
        for k, data_set in enumerate(data_sets):
            if k or begin:
                each.begin()
            for item in data_set:
                each.partial_fit(*item)

    model = small_model()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    unbroken = learner(model, **settings)
    feed(unbroken, stream)

    stopped = learner(small_model(), **settings)
    stopped.model.load_state_dict(start)
    stopped.begin()
    feed(stopped, [*stream[:3], stream[3][:4]])
    file = io.BytesIO()
    torch.save(stopped.state_dict(), file)
    feed(stopped, [stream[5]])  # what is done after saving must not reach what was saved
    file.seek(0)
    resumed = learner(small_model(), **settings)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    feed(resumed, [stream[3][4:], *stream[4:]], begin=False)

    assert torch.equal(resumed.theta, unbroken.theta)
    assert torch.equal(resumed.phi, unbroken.phi)
    assert resumed.gradients == unbroken.gradients
    assert not torch.equal(stopped.theta, unbroken.theta)


def test_a_state_is_not_changed_by_what_is_learned_after():
    each = learner(every=2)
    for item in items(4):
        each.partial_fit(*item)
    state = each.state_dict()
    theta, moment = each.theta, state["optimiser"]["state"][0]["exp_avg"].clone()
    for item in items(4):
        each.partial_fit(*item)
    assert torch.equal(state["optimiser"]["state"][0]["exp_avg"], moment)
    each.load_state_dict(state)
    assert torch.equal(each.theta, theta)
    for item in items(4):
        each.partial_fit(*item)
    assert torch.equal(state["optimiser"]["state"][0]["exp_avg"], moment)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every: 0 is not allowed; must be at least 1"),
        ({"buffer": 0}, "buffer: 0 is not allowed; must be at least 1"),
        ({"replay": 0}, "replay: 0"),
        ({"meta_rate": -1.0}, "meta_rate: -1.0"),
        ({"order": "third"}, "order: 'third' must be one of second, first, last, pull"),
        ({"descent": "rmsprop"}, "descent: 'rmsprop' must be one of adam, sgd"),
        ({"forget": "all"}, "forget: 'all' must be one of reservoir, oldest"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(settings, message):
    with pytest.raises(UsageError, match=message):
        learner(**settings)


def test_an_item_without_examples_or_with_too_few_targets_is_refused():
    each = learner()
    with pytest.raises(UsageError, match="item: 0 inputs and 0 targets"):
        each.partial_fit(torch.empty(0, 2), torch.empty(0, 1))
    with pytest.raises(UsageError, match="item: 4 inputs and 3 targets"):
        each.partial_fit(torch.randn(4, 2), torch.randn(3, 1))
    with pytest.raises(UsageError, match="item: inputs and targets need an axis of examples"):
        each.partial_fit(torch.tensor(1.0), torch.tensor(1.0))
    with pytest.raises(UsageError, match="x: it must be a tensor, got list"):
        each.partial_fit([[1.0, 2.0]], torch.randn(1, 1))
    with pytest.raises(UsageError, match="x: it must be a tensor, got list"):
        each.predict([[1.0, 2.0]])


def test_networks_with_running_statistics_are_refused():
    with pytest.raises(UsageError, match="running statistics"):
        OnlineLearner(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)), F.mse_loss)
