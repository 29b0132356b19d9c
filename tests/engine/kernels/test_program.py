"""A program of kernels against the hand-written one for CPUs: on a GPU, or else in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pathaware import GradientDescent, Layout, MetaLearner
from pathaware.engine import kernels
from pathaware.methods import get_method
from pathaware.models import conv4
from tests.conftest import distance, image_episodes, meta_gradient, with_constant_statistics
from tests.engine.kernels.checks import CUDA, DEVICE, DTYPE
from tests.methods.checks import estimated, scattered

pytest.importorskip("triton")


def learner_of(model: nn.Module) -> MetaLearner:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return MetaLearner(model, GradientDescent(model, 1), F.cross_entropy)


@pytest.mark.parametrize(("by_products", "constant"), [(False, False), (True, False), (True, True)])
def test_losses_gradients_and_products_are_those_of_the_layers(monkeypatch, by_products, constant):
    """With a number of channels that is no power of two, gains of both signs, and labels to be ignored."""
    from pathaware.engine.kernels import program as programs
    from pathaware.engine.kernels import stem_products

    monkeypatch.setattr(programs, "PRODUCTS", (DTYPE,) if by_products else ())
    monkeypatch.setattr(stem_products, "_PARTS", 0)  # one program, which takes many rounds
    monkeypatch.setattr(kernels, "usable", lambda point: True)
    model = conv4(3, size=5, channels=2, width=12, blocks=2)
    learner = learner_of(with_constant_statistics(model) if constant else model)
    with torch.no_grad():
        model.norm1.weight[:2] = torch.tensor([-0.7, 0.0])
    episodes = image_episodes(size=5)
    x, y = episodes.support_x, episodes.support_y.index_fill(1, torch.tensor([1]), -100)
    initial = learner.rule.layout.flatten(learner.model).detach()
    point = initial + 0.05 * torch.randn(len(x), len(initial))
    direction = torch.randn_like(point)

    learner.execution.program, program = None, learner.execution.program
    learner.execution.kernel_program = None
    with kernels.switched_off(), torch.enable_grad():
        leaf = point.clone().requires_grad_()
        monkeypatch.setattr(kernels, "usable", lambda point: False)
        losses, gradient = learner.gradient_at(leaf, x, y, create_graph=True)
        (product,) = torch.autograd.grad((gradient * direction).sum(), leaf)

    ours = programs.kernel_program(program)
    learner.to(DEVICE, DTYPE)
    monkeypatch.setattr(kernels, "usable", lambda point: True)
    point, direction, x = (data.to(DEVICE, DTYPE) for data in (point, direction, x))
    y = y.to(DEVICE)
    found, found_gradient, saved = ours.loss_and_gradient(point, x, y)
    close = 1e-3 if CUDA else 1e-12
    losses, gradient, product = (data.to(found) for data in (losses, gradient, product))
    assert distance(found, losses) < close
    assert distance(ours.losses(point, x, y), losses) < close
    assert distance(found_gradient, gradient) < close
    found_product = ours.hvp(point, direction, saved)
    assert distance(found_product, product) < close
    for values in (found_gradient, found_product):
        views = learner.rule.layout.views(values)
        biases = [v for name, v in views.items() if name.startswith("conv") and "bias" in name]
        assert len(biases) == (0 if constant else 2)
        assert not any(bias.any() for bias in biases)


@pytest.mark.skipif(CUDA, reason="only the interpreter runs kernels in float64")
def test_parameters_that_tasks_share_are_meta_learned_through_the_kernels(monkeypatch):
    model, episodes = conv4(3, size=4, channels=2, width=4, blocks=2), image_episodes(size=4)
    rule = GradientDescent(Layout.of(model, lambda name: "norm" not in name), 1, rate=0.1)
    expected = meta_gradient(MetaLearner(model, rule, F.cross_entropy, execution="loop"), episodes)
    learner = MetaLearner(model, rule, F.cross_entropy)
    assert learner.execution.kernel_program is not None
    learner.execution.program = None  # on a CPU it would be taken instead
    monkeypatch.setattr(kernels, "usable", lambda point: True)
    found = meta_gradient(learner, episodes)
    assert distance(found, expected) < 1e-10


@pytest.mark.skipif(CUDA, reason="only the interpreter runs kernels in float64")
@pytest.mark.parametrize("name", ["metal", "warp-grad", "alfa"])
def test_a_method_learns_on_the_kernels_what_it_learns_in_a_loop(monkeypatch, name):
    """Objectives of steps, layers between the blocks, and sums over layers."""
    method, episodes = get_method(name), image_episodes(size=5)
    settings = {"rate": 0.1, "steps": 2}
    found = []
    for execution in ("loop", "batched"):
        torch.manual_seed(1)
        model = conv4(3, size=5, channels=2, width=5, blocks=2)
        learner = scattered(
            method.build(model, dict(settings), F.cross_entropy, execution=execution).double()
        )
        if execution == "batched":
            assert learner.execution.kernel_program is not None
            learner.execution.program = None  # on a CPU it would be taken instead
            monkeypatch.setattr(kernels, "usable", lambda point: True)
            with monkeypatch.context() as patch:  # nothing is left to PyTorch's layers
                patch.setattr(learner.execution, "forward", None)
                found.append(estimated(learner, learner.meta_gradient, episodes))
        else:
            found.append(estimated(learner, learner.meta_gradient, episodes))
    assert distance(*found) < 1e-10


@pytest.mark.skipif(CUDA, reason="only the interpreter runs kernels in float64")
def test_a_product_uses_the_factors_that_its_gradient_has_split(monkeypatch):
    from pathaware.engine.kernels import weight_gradient

    # the interpreter has no products of bfloat16; float16 is split in the same way
    monkeypatch.setattr(weight_gradient, "_PIECE", torch.float16)
    split, counts = weight_gradient.split, []

    def counting(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        counts.append(len(tensors))
        return split(tensors)

    monkeypatch.setattr("pathaware.engine.kernels.program.split", counting)
    learner = learner_of(conv4(2, size=4, channels=1, width=16, blocks=2))
    program = learner.execution.kernel_program
    x, y = torch.randn(1, 2, 1, 4, 4), torch.tensor([[0, 1]])
    initial = learner.rule.layout.flatten(learner.model).detach()
    point, direction = initial[None], torch.randn(1, len(initial))
    found = []
    for dtype in (torch.float32, torch.float64):  # in float64 nothing is split
        p, v, images = (data.to(DEVICE, dtype) for data in (point, direction, x))
        _, gradient, saved = program.loss_and_gradient(p, images, y.to(DEVICE))
        found.append([gradient.double(), program.hvp(p, v, saved).double()])
    assert counts == [2, 2] * 2  # x and gy for the gradient, dx and dgy for the product
    for single, double in zip(*found, strict=True):
        assert distance(single, double) < 1e-4


@pytest.mark.skipif(not CUDA, reason="captures a CUDA graph")
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float32])
def test_a_captured_pass_with_two_streams_gives_the_bits_of_an_eager_one(monkeypatch, storage, constant):
    monkeypatch.setattr(kernels, "storage", lambda point: storage)
    model = conv4(5, size=32)
    learner = learner_of(with_constant_statistics(model) if constant else model).to(DEVICE, DTYPE)
    program = learner.execution.kernel_program
    x = torch.randn(4, 25, 3, 32, 32, device=DEVICE, dtype=DTYPE)
    y = torch.arange(25, device=DEVICE).expand(4, -1) % 5
    point = learner.rule.layout.flatten(learner.model).detach().expand(4, -1).contiguous()

    def both() -> list[torch.Tensor]:
        losses, gradient, saved = program.loss_and_gradient(point, x, y)
        return [losses, gradient, program.hvp(point, gradient, saved)]

    eager = [result.clone() for result in both()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both()
    for _ in range(10):
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(captured, eager, strict=True))


def test_a_label_beyond_the_last_class_gives_no_plausible_loss(monkeypatch):
    monkeypatch.setattr(kernels, "usable", lambda point: True)
    from pathaware.engine.kernels import classifier

    z, weight = torch.randn(2, 3, 1, 1, 16), torch.randn(2, 3, 16)
    z, weight, bias = (data.to(DEVICE, DTYPE) for data in (z, weight, torch.randn(2, 3)))
    parts = classifier.logits(z, weight, bias)
    y = torch.tensor([[0, 1, 2], [0, 3, 1]], device=DEVICE)
    losses = classifier.losses_only(parts, z, weight, y)
    assert losses.isnan().tolist() == [False, True]


@pytest.mark.parametrize(
    ("width", "channels", "ways", "fits"),
    [(16, 3, 5, True), (48, 3, 5, True), (130, 3, 5, False), (16, 5, 5, False), (16, 3, 65, False)],
)
def test_only_networks_that_the_kernels_compute_have_a_program(width, channels, ways, fits):
    learner = learner_of(conv4(ways, size=8, channels=channels, width=width, blocks=2))
    assert learner.execution.program is not None
    assert (learner.execution.kernel_program is not None) is fits


def test_a_program_of_kernels_starts_with_a_block():
    first, *others = conv4(5, size=8, channels=3, width=16, blocks=2)
    learner = learner_of(nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), first, *others))
    assert learner.execution.program is not None
    assert learner.execution.kernel_program is None
