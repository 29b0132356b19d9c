"""The kernels against the layers that they replace: on a GPU, or else in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware import GradientDescent, MetaLearner, Pamela, UsageError
from pathaware.core.batch_norm import freeze_running_statistics
from pathaware.core.head import HeadLearner
from pathaware.engine import kernels
from pathaware.methods.prototypical import Prototypical
from pathaware.models import conv4
from pathaware.models.traced import fold_biases
from tests.conftest import distance, image_episodes, meta_gradient, with_constant_statistics
from tests.engine.kernels.checks import CLOSE, CUDA, DEVICE, DTYPE, assert_same, leaf

pytest.importorskip("triton")
from pathaware.engine.kernels import normalisation, stem
from pathaware.engine.kernels import weight_gradient as weight_gradients
from pathaware.engine.kernels.functions import block, first_block

EPS = 1e-5

STEPS = 3 if CUDA else 1  # the interpreter takes ten seconds per step
POOLS = {"max": lambda y: F.max_pool2d(y, 2), "average": lambda y: F.avg_pool2d(y, 2), "none": lambda y: y}


def plain(x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, pooling="max", moments=None) -> Tensor:
    """The block with PyTorch's layers, one task after another, channels last."""
    out = []
    for t in range(len(x)):
        y = F.conv2d(x[t].permute(0, 3, 1, 2), weight[t], padding=1)
        statistics = (None, None) if moments is None else moments.to(x)
        y = F.batch_norm(y, *statistics, gamma[t], beta[t], training=moments is None, eps=EPS)
        out.append(POOLS[pooling](F.relu(y)).permute(0, 2, 3, 1))
    return torch.stack(out)


def assert_blocks_are_same(*inputs: Tensor, pooling: str = "max", moments: Tensor | None = None) -> None:
    settings = pooling, moments
    assert_same(
        lambda *given: block(*given, EPS, *settings), lambda *given: plain(*given, *settings), *inputs
    )


def assert_first_blocks_are_same(
    images: Tensor, *inputs: Tensor, moments: Tensor | None = None, **close: float
) -> None:
    def theirs(x: Tensor, *given: Tensor) -> Tensor:
        return plain(x.permute(0, 1, 3, 4, 2), *given, moments=moments)

    ours = lambda *given: first_block(*given, EPS, moments)  # noqa: E731
    assert_same(ours, theirs, images, *inputs, **close)


def with_hard_channels(gamma: Tensor) -> Tensor:
    """One gain is negative and one is zero, where all four pixels of a window tie."""
    with torch.no_grad():
        gamma[:, 0], gamma[:, 1] = -0.7, 0.0
    return gamma


def moments_of(channels: int) -> Tensor:
    return torch.stack([torch.randn(channels), torch.rand(channels) + 0.1]).to(DEVICE, DTYPE)


@pytest.mark.parametrize(
    ("height", "width", "channels", "pooling", "constant"),
    [
        (4, 6, 32, "max", False),
        (5, 7, 32, "max", False),
        (2, 3, 32, "max", False),
        (5, 4, 16, "max", True),
        (4, 5, 16, "average", False),
        (4, 5, 16, "average", True),
        (4, 3, 16, "none", False),
    ],
)
def test_a_block_and_its_two_derivatives_are_those_of_the_layers(height, width, channels, pooling, constant):
    x, weight = leaf(2, 3, height, width, 16), leaf(2, channels, 16, 3, 3)
    norm = with_hard_channels(leaf(2, channels)), leaf(2, channels)
    moments = moments_of(channels) if constant else None
    assert_blocks_are_same(x, weight, *norm, pooling=pooling, moments=moments)


@pytest.mark.parametrize(
    ("channels", "height", "width", "constant"),
    [(1, 4, 6, False), (1, 5, 7, False), (3, 4, 6, False), (3, 5, 7, False), (2, 5, 6, True)],
)
def test_the_first_block_and_its_two_derivatives_are_those_of_the_layers(channels, height, width, constant):
    images, weight = leaf(2, 3, channels, height, width).detach(), leaf(2, 16, channels, 3, 3)
    norm, moments = (with_hard_channels(leaf(2, 16)), leaf(2, 16)), moments_of(16) if constant else None
    assert_first_blocks_are_same(images, weight, *norm, moments=moments)


@pytest.mark.parametrize("parts", [3, 1057])
def test_a_sum_has_any_number_of_parts(parts: int):
    from pathaware.engine.kernels.launch import sum_parts

    values = leaf(2, parts, 5, 9).detach()
    assert distance(sum_parts(values), values.sum(1)) < CLOSE


def test_the_first_block_takes_one_task_of_many_images_and_filters_in_any_order():
    count, side = (320, 84) if CUDA else (3, 5)
    images, shift = leaf(1, count, 3, side, side).detach(), leaf(1, 16)
    filters = leaf(16, 3, 3, 3).detach().to(memory_format=torch.channels_last)[None].requires_grad_()
    norm = with_hard_channels(leaf(1, 16)), shift
    assert_first_blocks_are_same(images, filters, *norm, close=10 * CLOSE)


@pytest.fixture
def _few_programs(monkeypatch):
    """More work than programs, so that each takes many rounds."""
    monkeypatch.setattr(normalisation, "_PARTS", 0)
    monkeypatch.setattr(normalisation, "_windows", lambda channels: 8)
    monkeypatch.setattr(stem, "_PARTS", 0)
    monkeypatch.setattr(weight_gradients, "_PROGRAMS", 9)


@pytest.mark.usefixtures("_few_programs")
def test_programs_that_take_many_rounds_give_the_same_blocks():
    norm = leaf(2, 16), leaf(2, 16)
    assert_blocks_are_same(leaf(2, 5, 6, 6, 16), leaf(2, 16, 16, 3, 3), *norm)
    assert_first_blocks_are_same(leaf(2, 5, 3, 6, 6).detach(), leaf(2, 16, 3, 3, 3), *norm)


def test_filters_may_be_views_of_a_flat_point():
    point = leaf(2, 9 * 16 * 16 + 32)

    weight, gamma, beta = point.split([9 * 16 * 16, 16, 16], dim=1)
    given = leaf(2, 2, 4, 4, 16), weight.view(2, 16, 16, 3, 3), gamma, beta
    ours, theirs = (
        torch.autograd.grad(z.square().sum(), point)[0] for z in (block(*given, EPS), plain(*given))
    )
    assert distance(ours, theirs) < CLOSE


@pytest.mark.parametrize(("pieces", "error"), [(1, 3e-3), (2, 2e-5), (3, 1e-6)])
def test_more_pieces_make_a_weight_gradient_more_exact(monkeypatch, pieces, error):
    monkeypatch.setattr(weight_gradients, "number_of_pieces", lambda x: pieces)
    if not CUDA:  # the interpreter has no products of bfloat16; float16 is split in the same way
        monkeypatch.setattr(weight_gradients, "_PIECE", torch.float16)
    if pieces == 1:
        monkeypatch.setattr(
            weight_gradients,
            "split",
            lambda tensors: [data.to(weight_gradients._PIECE) for data in tensors],
        )
    x, g = (leaf(2, 3, 5, 6, 16).detach() for _ in range(2))
    tasks = zip(x.double().permute(0, 1, 4, 2, 3), g.double().permute(0, 1, 4, 2, 3), strict=True)
    exact = torch.stack([torch.nn.grad.conv2d_weight(a, (16, 16, 3, 3), b, padding=1) for a, b in tasks])
    found = torch.empty(exact.shape, device=DEVICE)
    weight_gradients.weight_gradient(x.float(), g.float(), found)
    assert distance(found.double(), exact) < error
    if pieces < 3:
        assert distance(found.double(), exact) > error / 1000  # so that one more piece matters


def test_a_third_derivative_is_refused():
    x, weight, gamma, beta = leaf(1, 2, 4, 4, 16), leaf(1, 16, 16, 3, 3), leaf(1, 16), leaf(1, 16)
    (gradient,) = torch.autograd.grad(block(x, weight, gamma, beta, 1e-5).sum(), weight, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), weight, create_graph=True)
    with pytest.raises(UsageError, match="cannot be differentiated again"):
        second.sum().backward()


@pytest.fixture
def learner(monkeypatch) -> Callable[[str], MetaLearner]:
    """A Conv-2 whose blocks go through the kernels unless it runs as a loop."""
    monkeypatch.setattr(kernels, "usable", lambda point: kernels._enabled())

    def build(
        execution: str,
        rule=lambda m: Pamela(m, STEPS, rate=0.1, q_start=0.5, skip=1),
        program: bool = True,
        constant: bool = False,
        width: int = 16,
    ) -> MetaLearner:
        torch.manual_seed(0)
        model = conv4(3, size=4, channels=2, width=width, blocks=2)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
            if constant:
                with_constant_statistics(model)
        learner = MetaLearner(model, rule(model), F.cross_entropy, execution=execution)
        if not program:
            learner.execution.kernel_program = None
        assert execution == "loop" or program is (learner.execution.kernel_program is not None)
        learner.execution.program = None  # it would replace the kernels
        return learner.to(DEVICE, DTYPE)

    return build


@pytest.fixture
def launches(monkeypatch) -> list[str]:
    """The operations that ran as kernels."""
    from pathaware.engine.kernels import functions
    from pathaware.engine.kernels import program as programs

    seen: list[str] = []
    for module, name in (
        (functions, "convolve"),
        (functions, "weight_gradient"),
        (programs, "convolve"),
        (programs, "weight_gradient_parts"),
    ):
        short, original = name.removesuffix("_parts"), getattr(module, name)
        spy = lambda *a, _name=short, _original=original, **k: (seen.append(_name), _original(*a, **k))[1]  # noqa: E731
        monkeypatch.setattr(module, name, spy)
    return seen


@pytest.mark.parametrize(("order", "program"), [("second", True), ("first", False)])
def test_the_meta_gradient_through_kernels_is_that_of_the_loop(learner, launches, order, program):
    episodes = image_episodes(size=4).to(DEVICE, DTYPE)
    ours = meta_gradient(learner("batched", program=program), episodes, order)
    assert {"convolve", "weight_gradient"} == set(launches)
    assert distance(ours, meta_gradient(learner("loop"), episodes, order)) < (1e-3 if CUDA else 1e-11)


@pytest.mark.parametrize(
    ("rule", "program"),
    [
        pytest.param(lambda m: Pamela(m, STEPS, rate=0.1, q_start=0.5, skip=1), True, id="pamela, one node"),
        pytest.param(
            lambda m: GradientDescent(m, STEPS, rate=0.05), False, id="maml, blocks", marks=pytest.mark.slow
        ),
    ],
)
def test_the_meta_gradient_with_constant_statistics_is_that_of_the_loop(learner, launches, rule, program):
    """With a number of channels that is no power of two."""
    episodes = image_episodes(size=4).to(DEVICE, DTYPE)
    settings = {"rule": rule, "constant": True, "width": 12}
    ours = meta_gradient(learner("batched", program=program, **settings), episodes)
    assert {"convolve", "weight_gradient"} == set(launches)
    assert distance(ours, meta_gradient(learner("loop", **settings), episodes)) < (1e-3 if CUDA else 1e-10)


def test_with_constant_statistics_an_inductive_prediction_does_not_run_the_support_set(learner, monkeypatch):
    episodes = image_episodes(size=4).to(DEVICE, DTYPE)
    support, queries, predictions = episodes.support_x, episodes.query_x, []
    for execution in ("batched", "loop"):
        one = learner(execution, constant=True)
        counts: list[int] = []

        def spied(point: Tensor, x: Tensor, forward=one.execution.forward, counts=counts) -> Tensor:
            counts.append(x.shape[1])
            return forward(point, x)

        monkeypatch.setattr(one.execution, "forward", spied)
        point = one.rule.layout.flatten(one.model).detach().expand(2, -1)
        with torch.no_grad():
            predictions.append(one.outputs_at(point, queries, support))
        assert counts == [queries.shape[1]]
        assert one.query_level(None) == one.query_level("batch") == "alone"
    assert distance(*predictions) < CLOSE


def test_test_time_adaptation_through_kernels_is_that_of_the_loop(learner, launches):
    episodes = image_episodes(size=4).to(DEVICE, DTYPE)
    ends = [learner(e).path(episodes.support_x, episodes.support_y).end for e in ("batched", "loop")]
    assert launches
    assert distance(*ends) < (1e-4 if CUDA else 1e-12)


@pytest.mark.skipif(not CUDA, reason="minutes in the interpreter")
def test_checkpointed_steps_give_the_same_meta_gradient(learner):
    episodes = image_episodes(size=4).to(DEVICE, DTYPE)
    gradients = []
    for checkpoint in (False, True):
        one = learner("batched", lambda m: GradientDescent(m, 2, rate=0.05))
        one.checkpoint = checkpoint
        gradients.append(meta_gradient(one, episodes))
    assert torch.equal(*gradients)


@pytest.mark.parametrize("constant", [False, True])
def test_heads_embed_images_through_the_kernels(monkeypatch, launches, constant):
    monkeypatch.setattr(kernels, "usable", lambda point: kernels._enabled)
    episodes = image_episodes(size=4).to(DEVICE, DTYPE)
    model = conv4(3, size=4, channels=2, width=12, blocks=2)
    model = with_constant_statistics(model) if constant else model
    gradients, counts = [], []
    for execution in ("auto", "loop"):
        one = HeadLearner(model, Prototypical(model), F.cross_entropy, execution=execution)
        gradients.append(meta_gradient(one.to(DEVICE, DTYPE), episodes))
        counts.append(len(launches))
    assert counts[0] == counts[1] > 0  # only the first one uses kernels
    assert distance(*gradients) < (1e-3 if CUDA else 1e-11)


@pytest.mark.parametrize("graph", [False, True])
def test_an_inductive_prediction_uses_the_kernels_unless_it_is_differentiated(learner, launches, graph):
    episodes = image_episodes(size=4).to(DEVICE, DTYPE)
    predictions = []
    for execution in ("batched", "loop"):
        one = learner(execution)
        point = one.rule.layout.flatten(one.model).detach().expand(2, -1)
        with torch.set_grad_enabled(graph):
            predictions.append(one.outputs_at(point, episodes.query_x, episodes.support_x))
    assert distance(*predictions) < CLOSE
    assert bool(launches) is not graph


def test_images_that_require_a_gradient_do_not_use_the_kernels(learner, launches):
    one = learner("batched")
    images = image_episodes(size=4).query_x.to(DEVICE, DTYPE).requires_grad_()
    point = one.rule.layout.flatten(one.model).detach().expand(2, -1)
    (gradient,) = torch.autograd.grad(one.outputs_at(point, images).square().sum(), images)
    assert gradient.abs().sum() > 0
    assert not launches


def test_if_triton_cannot_compile_there_is_a_warning_and_no_kernel(monkeypatch):
    from pathaware.engine.kernels import launch

    device = torch.device(DEVICE)
    assert kernels._compiles(device)

    def fail(partial: Tensor) -> Tensor:
        raise RuntimeError("Failed to find C compiler.\nPlease specify one")

    monkeypatch.setattr(launch, "sum_parts", fail)
    with pytest.warns(UserWarning, match=r"slower PyTorch layers are used: Failed to find C compiler\.$"):
        assert not kernels._compiles(device)


def blocks_of(model: nn.Module) -> int:
    from pathaware import Layout
    from pathaware.engine.batched import LAYERS, lower
    from pathaware.models.traced import trace

    return len(lower(trace(model, LAYERS), Layout.of(model)).blocks)


def sequence(**changes: nn.Module) -> nn.Module:
    layers = {
        "conv": nn.Conv2d(3, 16, 3, padding=1),
        "norm": nn.BatchNorm2d(16, track_running_stats=False),
        "relu": nn.ReLU(),
        "pool": nn.MaxPool2d(2),
    }
    return nn.Sequential(*{**layers, **changes}.values(), nn.Flatten(), nn.LazyLinear(5))


@pytest.mark.parametrize(
    "changes",
    [
        {"conv": nn.Conv2d(3, 16, 3, padding=1, stride=2)},
        {"conv": nn.Conv2d(3, 16, 5, padding=2)},
        {"conv": nn.Conv2d(3, 16, 3)},
        {"conv": nn.Conv2d(3, 144, 3, padding=1), "norm": nn.BatchNorm2d(144, track_running_stats=False)},
        {"conv": nn.Conv2d(5, 16, 3, padding=1)},
        {"norm": nn.BatchNorm2d(16, track_running_stats=False, affine=False)},
        {"relu": nn.LeakyReLU()},
        {"pool": nn.MaxPool2d(3)},
        {"pool": nn.MaxPool2d(2, stride=1)},
        {"pool": nn.MaxPool2d(2, ceil_mode=True)},
        {"pool": nn.AvgPool2d(2)},
    ],
    ids=str,
)
def test_a_block_that_the_kernels_do_not_compute_is_left_to_the_layers(changes):
    channels = changes["conv"].in_channels if "conv" in changes else 3
    model = sequence(**changes)
    model.double()(torch.randn(2, channels, 12, 12))
    assert blocks_of(model) == 0


def test_every_block_of_the_papers_network_is_found():
    assert blocks_of(conv4(5, size=32)) == 4


def conv(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs, track_running_stats=False)]


def test_a_bias_before_constant_statistics_leaves_a_block_to_the_layers_unless_it_is_folded():
    model = freeze_running_statistics(conv4(5, size=16, width=16), all_norms=True)
    assert blocks_of(model) == 0
    assert blocks_of(fold_biases(model)) == 4


def test_blocks_after_the_first_may_end_in_any_pooling_or_in_none():
    first = [*conv(3, 16), nn.ReLU(), nn.MaxPool2d(2)]
    others = [*conv(16, 48), nn.ReLU(), nn.AvgPool2d(2), *conv(48, 16), nn.ReLU(), *conv(16, 16), nn.ReLU()]
    head = [nn.Flatten(), nn.Linear(16 * 9, 5)]
    assert blocks_of(nn.Sequential(*first, *others, *head)) == 4
    assert blocks_of(nn.Sequential(*conv(3, 16), nn.ReLU(), *conv(16, 16), nn.ReLU(), *head)) == 1


class Watched(nn.Module):
    """Reads the convolution twice, so that it cannot be part of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16, track_running_stats=False)
        self.pool, self.head = nn.MaxPool2d(2), nn.Linear(16 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.head(torch.flatten(self.pool(F.relu(self.norm(y))) + self.pool(y), 1))


def test_a_block_whose_inside_is_read_elsewhere_is_left_to_the_layers():
    assert blocks_of(Watched()) == 0


@pytest.mark.parametrize("granularity", ["filter", "layer", "parameter"])
@pytest.mark.parametrize("skip", [None, 1])
def test_the_fused_update_and_its_derivative_are_those_of_the_rule(monkeypatch, granularity, skip):
    model = conv4(3, size=4, channels=2, width=32, blocks=2)  # a filter has more entries than one round
    rule = Pamela(model, 2, skip=skip, q_granularity=granularity, p_granularity=granularity).to(DEVICE, DTYPE)
    with torch.no_grad():
        for parameter in rule.parameters():
            parameter.add_(torch.rand_like(parameter))
    initial = leaf(len(rule.layout))
    points, gradient = [initial.expand(2, -1), leaf(2, len(rule.layout))], leaf(2, len(rule.layout))
    weights = leaf(2, len(rule.layout)).detach()
    wanted = [initial, points[1], gradient, *(p for p in rule.parameters() if p.numel())]
    found = []
    for fused in (False, True):
        monkeypatch.setattr(kernels, "usable", lambda point, fused=fused: fused)
        following = rule.step(1, points, gradient)
        loss = (following * weights * following).sum()
        found.append([following, *torch.autograd.grad(loss, wanted, allow_unused=True)])
    for ours, theirs in zip(found[1], found[0], strict=True):
        assert (ours is None) == (theirs is None)
        assert ours is None or distance(ours, theirs) < CLOSE


@pytest.mark.parametrize("hidden", [3, 14])
def test_a_step_of_meta_lstm_is_that_of_its_layers(monkeypatch, hidden):
    """Also where a program takes several rounds, gradients are tiny or zero, and tasks share a point."""
    from pathaware.engine.kernels import update
    from pathaware.methods.meta_lstm import MetaLSTM

    monkeypatch.setattr(update, "_PROGRAMS", 2)
    rule = MetaLSTM(nn.Linear(20, 13), 3, hidden=hidden).to(DEVICE, DTYPE)
    with torch.no_grad():
        for parameter in rule.parameters():
            parameter.add_(torch.randn_like(parameter))
    size = len(rule.layout)
    start, weights = leaf(size), leaf(2, size).detach()
    signs = torch.arange(size, device=DEVICE) % 5 - 2
    gradients = (10 ** (4 * leaf(3, 2, size).detach()) * signs).clamp(-3, 3)
    losses = leaf(3, 2).detach().abs()
    found = []
    for usable in (False, True):
        monkeypatch.setattr(kernels, "usable", lambda point, usable=usable: usable)
        point, memory = rule.begin(start.expand(2, -1), None)
        for j in range(3):
            point, memory = rule.advance(j, [point], gradients[j], losses[j], memory)
        if not usable:
            columns, state, gates = memory
            memory = (*(columns.spread(part) for part in state), gates)
        wanted = [start, *rule.parameters()]
        of_point = torch.autograd.grad((point * weights).sum(), wanted, retain_graph=True)
        of_memory = torch.autograd.grad(sum(each.sin().sum() for each in memory), wanted)
        found.append([point, *memory, *of_point, *of_memory])
    for plain, fused in zip(*found, strict=True):
        assert distance(fused, plain) < (1e-3 if CUDA else 1e-10)
