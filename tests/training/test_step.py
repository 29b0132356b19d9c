"""One meta-iteration: plain, in chunks, with a bad gradient, and in a CUDA graph."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from pathaware import GradientDescent, MetaLearner, Pamela, Unrolled
from pathaware.core.seeding import generator
from pathaware.data.episodes import Augmentation, ImageEpisodes
from pathaware.data.importing import in_memory
from pathaware.data.pixels import ImageFormat
from pathaware.data.sine import SineWaves
from pathaware.engine.cuda_graph import CapturedStep
from pathaware.models import conv4, mlp
from pathaware.training.meta_step import MetaStep
from tests.conftest import distance, with_constant_statistics

IN_DOUBLE = True


def sine_step(**options) -> MetaStep:
    torch.manual_seed(0)
    model = mlp(1, (8, 8), 1)
    learner = MetaLearner(model, Pamela(model, 3, skip=1), F.mse_loss)
    return MetaStep(learner, Unrolled(), SineWaves(5, dtype=torch.float64), rate=1e-2, **options)


def parameters(step: MetaStep) -> torch.Tensor:
    return torch.cat([p.detach().flatten().cpu() for p in step.parameters])


def advance(step: MetaStep, iterations: int, graph: bool = False) -> torch.Tensor:
    run = CapturedStep(step) if graph else step
    for i in range(iterations):
        run(step.source.draw(4, generator(0, "train", i)), 1e-2)
    return parameters(step)


def test_chunks_of_tasks_give_the_same_parameters():
    assert distance(advance(sine_step(chunk=1), 5), advance(sine_step(), 5)) < 1e-10


def test_clipping_bounds_the_meta_gradient_and_reports_its_norm_before():
    step = sine_step(clip=1e-3)
    outcome = step(step.source.draw(4, generator(0, "train", 0)), 1e-2)
    clipped = torch.cat([p.grad.flatten() for p in step.parameters]).norm()
    assert outcome.norm > 1e-3
    assert abs(clipped.item() - 1e-3) < 1e-6


def test_a_meta_gradient_that_is_not_finite_is_left_out_and_counted():
    step, calm = sine_step(), sine_step()
    bad = step.source.draw(4, generator(0, "train", 7))
    bad.query_y[0] = float("nan")
    before = parameters(step)
    outcome = step(bad, 1e-2)
    assert outcome.skipped == 1
    assert torch.equal(parameters(step), before)
    assert torch.equal(advance(step, 3), advance(calm, 3))  # the optimiser forgot it too


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")


def image_step(dtype: torch.dtype, width: int = 8, **options) -> MetaStep:
    """Five-way tasks of noise on the GPU; with a width of 16 and float32 its blocks run in kernels."""
    checkpoint, constant = options.pop("checkpoint", False), options.pop("constant", False)
    images = torch.randint(0, 256, (8, 12, 3, 16, 16), dtype=torch.uint8).numpy()
    store = in_memory("noise", [(f"c{i}", "train", x) for i, x in enumerate(images)], ImageFormat(16, 3), "")
    torch.manual_seed(0)
    model = conv4(5, size=16, width=width)
    model = with_constant_statistics(model) if constant else model
    learner = MetaLearner(model, GradientDescent(model, 2), F.cross_entropy, checkpoint=checkpoint)
    source = ImageEpisodes(store, "train", 5, 1, 3, Augmentation(crop=True), "cuda", dtype)
    return MetaStep(learner.to("cuda", dtype), Unrolled(), source, rate=1e-2, **options)


def advance_both(iterations: int, *args, **options) -> tuple[torch.Tensor, torch.Tensor]:
    both = []
    for graph in (True, False):
        torch.manual_seed(0)
        both.append(advance(image_step(*args, **options), iterations, graph))
    return both[0], both[1]


@needs_cuda
@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_graphed_step_gives_the_numbers_of_the_plain_one(chunk, checkpoint):
    assert distance(*advance_both(6, torch.float64, chunk=chunk, checkpoint=checkpoint)) < 1e-9


@needs_cuda
@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_the_graphed_step_gives_the_bits_of_the_plain_one_where_kernels_run(chunk, checkpoint):
    assert torch.equal(*advance_both(6, torch.float32, 16, chunk=chunk, checkpoint=checkpoint))


@needs_cuda
def test_a_graph_with_constant_statistics_gives_the_bits_of_the_plain_step():
    assert torch.equal(*advance_both(6, torch.float32, 16, constant=True))


@needs_cuda
def test_a_changed_number_of_tasks_records_a_new_graph_and_forgets_nothing():
    ends = []
    for graph in (True, False):
        torch.manual_seed(0)
        step = image_step(torch.float64)
        run = CapturedStep(step) if graph else step
        for tasks in (4, 4, 2, 4):
            run(step.source.draw(tasks, generator(0, "train", tasks)), 1e-2)
        ends.append(parameters(step))
    assert distance(*ends) < 1e-9
