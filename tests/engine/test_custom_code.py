"""Networks with code of their own: every execution computes what the loop does, or refuses."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pathaware import Episodes, GradientDescent, Layout, MetaLearner, UsageError
from tests.conftest import distance, meta_gradient


class Network(nn.Module):
    """Two linear layers, and a function of both and of the inputs."""

    def __init__(self, compute: Callable[[Network, Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.head, self.compute = nn.Linear(4, 8), nn.Linear(8, 3), compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, x)


def without_gradients(net: Network, x: Tensor) -> Tensor:
    with torch.no_grad():
        x = torch.relu(net.body(x))
    return net.head(x)


@torch.no_grad()
def features(net: Network, x: Tensor) -> Tensor:
    return torch.relu(net.body(x))


def with_gradients_in_evaluation_only(net: Network, x: Tensor) -> Tensor:
    with torch.set_grad_enabled(not net.training):
        x = net.body(x)
    return net.head(x)


def with_autocast(net: Network, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net.head(net.body(x))


def with_a_hook(net: Network, x: Tensor) -> Tensor:
    x = net.body(x)
    if x.requires_grad:
        x.register_hook(lambda gradient: -gradient)
    return net.head(x)


def relative_to_the_first(net: Network, x: Tensor) -> Tensor:
    x = net.body(x)
    return net.head(x + x[0])


CUSTOM = {
    "a part without gradients": without_gradients,
    "a function without gradients": lambda net, x: net.head(features(net, x)),
    "gradients that depend on a setting": with_gradients_in_evaluation_only,
    "a hook of an activation": with_a_hook,
    "the first example": relative_to_the_first,
    "layers by keyword": lambda net, x: net.head(input=torch.tanh(net.body(input=x))),
    "functions by keyword": lambda net, x: net.head(torch.relu(input=net.body(x))),
}


def episodes_of(shape: tuple[int, ...], make: Callable[..., Tensor] = torch.randn) -> Episodes:
    def examples(count: int) -> tuple[Tensor, Tensor]:
        return make(2, count, *shape), (torch.arange(count) % 3).expand(2, -1)

    return Episodes(*examples(6), *examples(9))


def agree(model: nn.Module, episodes: Episodes, adapted: str = "") -> MetaLearner:
    """Check that `auto` agrees with the loop; return the former."""
    layout = Layout.of(model, lambda name: name.startswith(adapted))
    auto, loop = (
        MetaLearner(model, GradientDescent(layout, 2, rate=0.5), F.cross_entropy, execution=name)
        for name in ("auto", "loop")
    )
    x, y, queries, _ = episodes.tensors()
    assert distance(meta_gradient(auto, episodes), meta_gradient(loop, episodes)) < 1e-10
    with torch.no_grad():
        predictions = [each.predictions_per_step(x, y, queries).outputs[-1] for each in (auto, loop)]
    assert distance(*predictions) < 1e-10
    return auto


@pytest.mark.parametrize("adapted", ["", "head"])
@pytest.mark.parametrize("name", CUSTOM)
@pytest.mark.filterwarnings("ignore:vmap cannot run this model")
def test_custom_code_is_not_batched_and_agrees_with_the_loop(name, adapted):
    auto = agree(Network(CUSTOM[name]), episodes_of((4,)), adapted)
    assert auto.execution.name == "vmap"


@pytest.mark.parametrize(
    "draw", [random.random, np.random.rand, lambda: torch.rand(()).item()], ids=["random", "numpy", "torch"]
)
@pytest.mark.filterwarnings("ignore:vmap cannot run this model")
def test_random_decisions_are_made_in_every_pass(draw):
    """Layers that are dropped at random, say: a traced network would repeat the first decision for good."""
    model = Network(lambda net, x: net.head(net.body(x) if draw() < 0.5 else torch.tanh(net.body(x))))
    learner, episodes = MetaLearner(model, GradientDescent(model, 1), F.cross_entropy), episodes_of((4,))
    assert len({learner.meta_loss(episodes).item() for _ in range(20)}) > 1


def with_a_counter(net: Network, x: Tensor) -> Tensor:
    net.calls += 1
    return net.head(net.body(x))


def with_kept_activations(net: Network, x: Tensor) -> Tensor:
    net.kept.append(net.body(x))
    return net.head(net.kept[-1])


def with_a_counter_in_a_buffer(net: Network, x: Tensor) -> Tensor:
    net.count += 1
    return net.head(net.body(x))


def with_another_buffer(net: Network, x: Tensor) -> Tensor:
    net.count = net.count + 1
    return net.head(net.body(x))


@pytest.mark.parametrize(
    "compute", [with_a_counter, with_kept_activations, with_a_counter_in_a_buffer, with_another_buffer]
)
@pytest.mark.filterwarnings("ignore:vmap cannot run this model")
def test_code_that_changes_the_network_runs_in_every_pass(compute):
    model, episodes = Network(compute), episodes_of((4,))
    model.calls, model.kept = 0, []
    model.register_buffer("count", torch.zeros(()))

    def changes() -> int:
        return model.calls + len(model.kept) + int(model.count)

    learner = MetaLearner(model, GradientDescent(model, 1), F.cross_entropy)
    assert learner.execution.name == "vmap"
    assert model.calls == len(model.kept) == 0
    seen = [changes()]
    for _ in range(2):
        learner.meta_loss(episodes)
        seen.append(changes())
    assert seen[0] < seen[1] < seen[2]


@pytest.mark.parametrize("execution", ["auto", "loop"])
@pytest.mark.filterwarnings("ignore:vmap cannot run this model; .* keeps tensors .* in hidden")
def test_a_loss_reads_what_the_network_keeps_of_the_pass_of_the_same_task(execution):
    """A penalty on activations, say: before, that of another task, or of a pass outside of the learner."""

    def keep(net: Network, x: Tensor) -> Tensor:
        net.hidden = torch.tanh(net.body(x))
        return net.head(net.hidden)

    def keep_in_outputs(net: Network, x: Tensor) -> Tensor:
        hidden = torch.tanh(net.body(x))
        return torch.cat([net.head(hidden), hidden], -1)

    kept, returned, episodes = Network(keep), Network(keep_in_outputs), episodes_of((4,))
    returned.load_state_dict(kept.state_dict())
    kept(episodes.query_x[0])
    losses: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda outputs, y: F.cross_entropy(outputs, y) + kept.hidden.square().mean(),
        lambda outputs, y: F.cross_entropy(outputs[:, :3], y) + outputs[:, 3:].square().mean(),
    ]
    ours, expected = (
        meta_gradient(MetaLearner(model, GradientDescent(model, 2), loss, execution=name), episodes)
        for model, loss, name in zip((kept, returned), losses, (execution, "loop"), strict=True)
    )
    assert distance(ours, expected) < 1e-10


@pytest.mark.parametrize("order", ["second", "none"])
@pytest.mark.parametrize("execution", ["auto", "vmap", "loop"])
def test_parameters_that_are_not_read_as_attributes_are_refused(execution, order):
    """Tasks put their own values in place of attributes: parameters in a list would never adapt."""
    model, episodes = Network(lambda net, x: net.head(x @ net.listed[0].T)), episodes_of((4,))
    model.listed = [model.body.weight]
    learner = MetaLearner(model, GradientDescent(model, 1), F.cross_entropy, execution=execution)
    with pytest.raises(UsageError, match=r"^model: its code reads body.weight other than as an attribute"):
        learner.adapted_losses(episodes, order).mean()
    layout = Layout.of(model, lambda name: name.startswith("head"))  # what tasks share may be read anywhere
    learner = MetaLearner(model, GradientDescent(layout, 1), F.cross_entropy, execution=execution)
    learner.adapted_losses(episodes, order).mean()


def test_a_constant_of_the_code_is_not_added_to_the_network():
    model = Network(lambda net, x: net.head(net.body(x) * torch.tensor(2.0)))
    before = set(vars(model))
    MetaLearner(model, GradientDescent(model, 1), F.cross_entropy)
    assert set(vars(model)) == before


def test_what_runs_without_gradients_gets_none():
    model = Network(without_gradients)
    learner = MetaLearner(model, GradientDescent(model, 2), F.cross_entropy)
    learner.meta_loss(episodes_of((4,))).backward()
    assert not model.body.weight.grad.any()
    assert model.head.weight.grad.any()


def test_a_part_with_autocast_is_not_batched():
    model = Network(with_autocast)
    with pytest.raises(UsageError, match=r"'batched' cannot run this model .*autocast"):
        MetaLearner(model, GradientDescent(model, 1), F.cross_entropy, execution="batched")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):  # what surrounds it is not a part
        plain = nn.Sequential(nn.Linear(4, 3))
        MetaLearner(plain, GradientDescent(plain, 1), F.cross_entropy, execution="batched")


class Words(nn.Module):
    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)
        self.padding = padding

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(F.embedding(x, self.embed.weight, self.padding)).mean(1))


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Embedding(7, 4, padding_idx=2), nn.Flatten(), nn.Linear(20, 3)),
        lambda: Words(2),
        lambda: Words(-5),
        lambda: Words(None),
    ],
)
def test_padding_gets_no_gradient(build):
    model, episodes = build(), episodes_of((5,), lambda *shape: torch.randint(0, 7, shape))
    learner = agree(model, episodes)
    weight = next(model.parameters())
    adapted = next(learner.adapt(episodes.support_x[0], episodes.support_y[0]).parameters())
    moved = (adapted != weight).any(1)
    padded = getattr(model, "padding", 2) is not None
    assert moved.tolist() == [row != 2 or not padded for row in range(7)]


def test_batch_norm_over_sequences_is_batched():
    norm = nn.BatchNorm1d(3, track_running_stats=False)
    model = nn.Sequential(nn.Linear(8, 4), norm, nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))
    assert agree(model, episodes_of((3, 8))).execution.name == "batched"


def test_checkpoints_of_the_network_are_refused_where_they_would_be_wrong():
    """They would be computed again after the parameters of the task have been taken out of the network."""
    episodes = episodes_of((4,))
    plain = Network(lambda net, x: net.head(torch.tanh(net.body(x))))
    own = Network(lambda net, x: net.head(torch.tanh(checkpoint(net.body, x, use_reentrant=False))))
    own.load_state_dict(plain.state_dict())
    gradients = []
    for model, execution, checkpointed in [
        (plain, "loop", False),
        (plain, "loop", True),
        (own, "auto", False),
    ]:
        rule = GradientDescent(model, 2, rate=0.5)
        learner = MetaLearner(model, rule, F.cross_entropy, execution=execution, checkpoint=checkpointed)
        gradients.append(meta_gradient(learner, episodes))
    assert max(distance(gradient, gradients[0]) for gradient in gradients) < 1e-10
    learner = MetaLearner(own, GradientDescent(own, 2), F.cross_entropy, execution="loop")
    with pytest.raises(UsageError, match=r"model: it uses torch.utils.checkpoint"):
        learner.meta_loss(episodes)
