"""Histograms of gradients: counts, files, and that training is not affected."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pathaware import GradientDescent, MetaLearner, Pamela, Unrolled
from pathaware.core.errors import UsageError
from pathaware.core.seeding import generator
from pathaware.data.sine import SineWaves
from pathaware.engine.cuda_graph import CapturedStep
from pathaware.models import conv4, mlp, resnet12
from pathaware.training.gradient_probe import (
    BINS,
    LARGEST,
    GradientProbe,
    Histograms,
    count,
    edges,
    probed_tensor,
)
from pathaware.training.meta_step import MetaStep
from pathaware.training.run_folder import Run
from pathaware.training.train import train
from tests.conftest import scatter
from tests.training.fits import in_memory
from tests.training.fits import trained as trained_by
from tests.training.test_step import image_step, needs_cuda, parameters
from tests.training.test_training import config

WATCHED = "2.weight"
IN_DOUBLE = True


def watched(every: int = 1, **options) -> GradientProbe:
    torch.manual_seed(0)
    model = mlp(1, (6, 6), 1)
    learner = scatter(MetaLearner(model, Pamela(model, 3, skip=1), F.mse_loss))
    step = MetaStep(learner, Unrolled(), SineWaves(5, dtype=torch.float64), rate=1e-2, **options)
    return GradientProbe(step, Histograms(WATCHED), every)


def plan(step: GradientProbe, iteration: int = 0):
    return step.step.source.draw(4, generator(0, "train", iteration))


def direct_gradients(learner: MetaLearner, episodes) -> list[torch.Tensor]:
    """The inner gradients, task by task through the network itself, and the meta-gradient by autograd."""
    rule, model, layout = learner.rule, learner.model, learner.rule.layout
    inner: list[list[torch.Tensor]] = [[] for _ in range(rule.steps)]
    losses = []
    for sx, sy, qx, qy in zip(*episodes.tensors(), strict=True):
        points = [layout.flatten(model)[None]]
        for j in range(rule.steps):
            views = {name: v[0] for name, v in layout.views(points[-1]).items()}
            loss = F.mse_loss(torch.func.functional_call(model, views, (sx,)), sy)
            (gradient,) = torch.autograd.grad(loss, points[-1], create_graph=True)
            inner[j].append(layout.views(gradient)[WATCHED][0].detach())
            points.append(rule.step(j, points, gradient))
        views = {name: v[0] for name, v in layout.views(points[-1]).items()}
        losses.append(F.mse_loss(torch.func.functional_call(model, views, (qx,)), qy))
    mean = torch.stack(losses).mean()
    return [*(torch.stack(rows) for rows in inner), *torch.autograd.grad(mean, model.get_parameter(WATCHED))]


@pytest.mark.parametrize("options", [{}, {"clip": 1e-3}, {"chunk": 3}])
def test_a_snapshot_counts_the_gradients_that_autograd_finds(options):
    step = watched(**options)
    expected = direct_gradients(step.step.learner, step.step.source.gather(plan(step)))
    step(plan(step), 1e-2)
    kept = step.histograms
    assert kept.counts[0].shape == (4, BINS)
    for row, values in enumerate(expected):
        reference, _ = np.histogram(values.numpy(), edges().numpy())
        assert kept.counts[0][row].tolist() == reference.tolist()
        assert kept.mean[0][row].item() == pytest.approx(values.abs().mean().item(), rel=1e-9)
        assert kept.largest[0][row].item() == pytest.approx(values.abs().max().item(), rel=1e-9)


def test_every_value_lies_in_its_bin_over_the_whole_range():
    values = torch.logspace(-9, 2.9, 5000)
    values = torch.cat([-values, torch.zeros(3), values])
    assert count(values).tolist() == np.histogram(values.numpy(), edges().numpy())[0].tolist()
    ends = edges()
    assert len(ends) == BINS + 1
    assert ends[0].item() == pytest.approx(-LARGEST)
    assert ends[BINS // 2] == 0


def test_what_is_beyond_the_edges_counts_to_the_outermost_bins_and_nan_nowhere():
    counts = count(torch.tensor([-torch.inf, -1e9, 1e9, torch.inf, torch.nan]))
    assert counts[0] == counts[-1] == 2
    assert counts.sum() == 4


@pytest.mark.parametrize("chunk", [0, 7])
def test_training_does_not_notice(chunk):
    torch.set_default_dtype(torch.float32)
    plain = trained_by(config(iterations=12, chunk=chunk)).state_dict()
    fit = in_memory(config(iterations=12, histograms=3, chunk=chunk))
    while not fit.done:
        fit.advance()
    seen = fit.objective.learner.state_dict()
    assert fit.objective.histograms is not None
    assert fit.objective.histograms.iterations == [0, 3, 6, 9]
    assert all(torch.equal(value, seen[name]) for name, value in plain.items())


def test_training_does_not_notice_where_the_network_draws_random_numbers():
    def trained(look: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        learner = MetaLearner(model, GradientDescent(model, 2), F.mse_loss)
        step = MetaStep(learner, Unrolled(), SineWaves(5, dtype=torch.float64), rate=1e-2)
        advance = GradientProbe(step, Histograms("0.weight"), 1) if look else step
        for i in range(3):
            advance(step.source.draw(4, generator(0, "train", i)), 1e-2)
        return parameters(step)

    assert torch.equal(trained(look=True), trained(look=False))


@needs_cuda
def test_a_cuda_graph_leaves_the_same_gradients_and_the_parameters_it_leaves_unwatched():
    ends, kept = [], []
    for graph, every in ((True, 1), (False, 1), (True, 0)):
        torch.manual_seed(0)
        step = image_step(torch.float32, 16, clip=1e-2)
        run = CapturedStep(step) if graph else step
        looking = GradientProbe(step, Histograms("conv4.weight"), every, run=run)
        for i in range(4):
            looking(step.source.draw(4, generator(0, "train", i)), 1e-2)
        ends.append(parameters(step))
        kept.append(looking.histograms)
    assert torch.equal(torch.stack(kept[0].counts), torch.stack(kept[1].counts))
    assert torch.equal(ends[0], ends[2])
    assert not kept[2]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (conv4(5, size=16, width=2), "conv4.weight"),
        (resnet12(5, size=16, width=1), "3.shortcut.weight"),
        (mlp(1, (4, 5, 6), 1), "4.weight"),
    ],
)
def test_the_last_convolution_or_hidden_layer_is_watched(model, name):
    assert probed_tensor(MetaLearner(model, GradientDescent(model, 1), F.mse_loss)) == name


def test_a_network_without_a_hidden_layer_is_refused():
    model = nn.Linear(1, 1)
    with pytest.raises(UsageError, match="histograms: the network adapts neither"):
        probed_tensor(MetaLearner(model, GradientDescent(model, 1), F.mse_loss))


def test_a_history_read_from_its_file_goes_on_where_it_was(tmp_path):
    whole, part = (watched(every=2) for _ in range(2))
    for i in range(6):
        whole(plan(whole, i), 1e-2)
        part(plan(part, i), 1e-2)
        if i == 3:
            part.histograms.save(tmp_path / "kept")
            part.histograms = Histograms.load(tmp_path / "kept")
    again = part.histograms
    assert again.of == WATCHED
    assert again.iterations == [0, 2, 4]
    for name in ("counts", "mean", "largest"):
        assert torch.equal(torch.stack(getattr(again, name)), torch.stack(getattr(whole.histograms, name)))
    assert not (tmp_path / "kept.new").exists()


def test_an_iteration_that_is_passed_again_replaces_what_came_after_it():
    kept = Histograms(WATCHED)
    for iteration, value in ((0, 1.0), (10, 2.0), (20, 3.0), (10, 4.0)):
        kept.add(iteration, [torch.tensor([value])])
    assert kept.iterations == [0, 10]
    assert [mean.item() for mean in kept.mean] == [1.0, 4.0]
    assert len(kept.counts) == len(kept.largest) == 2


def test_a_run_keeps_its_histograms_if_it_was_asked_to(tmp_path):
    torch.set_default_dtype(torch.float32)
    run = train(config(iterations=6, histograms=3), tmp_path / "run")
    kept = Run.open(run.folder).histograms()
    assert kept is not None
    assert (kept.of, kept.iterations) == ("2.weight", [0, 3])
    assert kept.counts[1].sum(1).tolist() == [25 * 1600] * 5 + [1600]
    assert train(config(iterations=2), tmp_path / "other").histograms() is None
