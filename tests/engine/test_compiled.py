"""The compiled meta-gradient, and the fallback if it cannot be compiled."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import torch
import torch.nn.functional as F

from pathaware import Episodes, Layout, MetaLearner, Pamela, Unrolled
from pathaware.engine import ENGINE, compiled
from pathaware.engine.compiled import CompiledUnrolled
from pathaware.engine.handwritten import task_threads
from pathaware.models import conv4, mlp
from pathaware.training import meta_step
from pathaware.training.config import Training
from tests.conftest import distance, image_episodes, regression_episodes, scatter


def learner() -> MetaLearner:
    torch.manual_seed(1)
    model = mlp(1, (4,), 1)
    return scatter(MetaLearner(model, Pamela(model, 2, rate=0.1, q_start=0.5, skip=1), F.mse_loss))


def gradient(
    estimator: Unrolled, learner: MetaLearner, *batches: Episodes
) -> tuple[torch.Tensor, torch.Tensor]:
    learner.zero_grad()
    losses = [estimator.backward(learner, episodes, 0.25) for episodes in batches]
    return torch.cat(losses), torch.cat([p.grad.flatten() for p in learner.parameters()])


@pytest.fixture(autouse=True)
def _no_compiler(request, monkeypatch):
    """A stand-in for `torch.compile` returns the traced graph itself, but in slow tests."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(torch, "compile", lambda graph, **options: graph)


@pytest.mark.parametrize("order", ["second", "first"])
def test_the_traced_meta_gradient_is_that_of_the_plain_one(order):
    subject, estimator = learner(), CompiledUnrolled(order)
    gradient(estimator, subject, regression_episodes(3))
    assert estimator.compiled is not None
    batches = regression_episodes(3), regression_episodes(2)  # other tasks, and a smaller chunk
    with torch.no_grad():
        for parameter in subject.parameters():
            parameter.add_(0.01)
    plain, ours = (gradient(o, subject, *batches) for o in (Unrolled(order), estimator))
    assert distance(ours[0], plain[0]) < 1e-10
    assert distance(ours[1], plain[1]) < 1e-10


def test_a_diverging_task_is_reverted_in_the_traced_form_too():
    subject, estimator = learner(), CompiledUnrolled()
    gradient(estimator, subject, regression_episodes())  # traced with tasks that converge
    wild = regression_episodes()
    wild.support_x[0] *= 1e3
    plain, ours = (gradient(o, subject, wild) for o in (Unrolled(), estimator))
    path = subject.path(wild.support_x, wild.support_y)
    assert path.reverted().tolist() == [True, False, False]
    assert distance(ours[1], plain[1]) < 1e-10


@pytest.fixture(params=[1, 2])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def test_convolutions_trace_too(threads):
    model = conv4(3, size=8, channels=2, width=3, blocks=2)
    subject = MetaLearner(model, Pamela(model, 2, rate=0.1, q_start=0.5, skip=1), F.cross_entropy)
    estimator = CompiledUnrolled()
    with task_threads():  # if they ran there, nothing would be traced
        gradient(estimator, subject, image_episodes())
    episodes = image_episodes()
    plain, ours = (gradient(o, subject, episodes) for o in (Unrolled(), estimator))
    assert estimator.compiled is not None
    assert distance(ours[1], plain[1]) < 1e-10


@pytest.mark.parametrize("adapted", ["0", "2", "4"])
def test_parameters_that_tasks_share_get_a_gradient_in_the_traced_form_too(adapted):
    model, estimator = mlp(1, (4, 4), 1), CompiledUnrolled()
    layout = Layout.of(model, lambda name: name.startswith(adapted))
    subject = MetaLearner(model, Pamela(layout, 2, rate=0.1, q_start=0.5, skip=1), F.mse_loss)
    episodes = regression_episodes()
    plain, ours = (gradient(o, subject, episodes) for o in (Unrolled(), estimator))
    assert estimator.compiled is not None
    assert distance(ours[1], plain[1]) < 1e-10


def test_a_changed_network_is_compiled_again():
    subject, estimator, episodes = learner(), CompiledUnrolled(), regression_episodes()
    before = gradient(estimator, subject, episodes)
    once = estimator.compiled
    gradient(estimator, subject, episodes)
    assert estimator.compiled is once
    subject.model[1] = torch.nn.Tanh()
    plain, ours = (gradient(o, subject, episodes) for o in (Unrolled(), estimator))
    assert estimator.compiled is not None
    assert distance(ours[1], plain[1]) < 1e-10 < distance(before[1], plain[1])


def test_if_compiling_fails_it_warns_once_and_the_numbers_are_the_same(monkeypatch):
    def broken(graph, **options):
        raise RuntimeError("no compiler here\nand many more lines")

    monkeypatch.setattr(torch, "compile", broken)
    subject, estimator, episodes = learner(), CompiledUnrolled(), regression_episodes()
    with pytest.warns(UserWarning, match=r"runs uncompiled: no compiler here$") as record:
        ours = gradient(estimator, subject, episodes, episodes)
    assert len(record) == 1
    plain = gradient(Unrolled(), subject, episodes, episodes)
    assert torch.equal(ours[1], plain[1])


@pytest.mark.slow
def test_the_compiled_meta_gradient_is_that_of_the_plain_one():
    subject, estimator, episodes = learner(), CompiledUnrolled(), regression_episodes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        ours = gradient(estimator, subject, episodes)
    assert estimator.compiled is not None
    assert distance(ours[1], gradient(Unrolled(), subject, episodes)[1]) < 1e-10


def test_auto_compiles_small_networks_in_long_runs_only(monkeypatch):
    monkeypatch.setattr(ENGINE, "has_compiler", lambda: True)
    long = Training(iterations=meta_step.WORTH_COMPILING, device="cpu")
    short = dataclasses.replace(long, iterations=meta_step.WORTH_COMPILING - 1)
    model = conv4(3, size=8, channels=2, width=3, blocks=2)
    images = MetaLearner(model, Pamela(model, 2), F.cross_entropy)
    assert meta_step.compiles(long, learner())
    assert not meta_step.compiles(short, learner())
    assert not meta_step.compiles(long, images)
    assert meta_step.compiles(dataclasses.replace(short, compile="on"), images)
    assert not meta_step.compiles(dataclasses.replace(long, compile="off"), learner())
    monkeypatch.setattr(ENGINE, "has_compiler", lambda: False)
    assert not meta_step.compiles(long, learner())


def test_a_compiler_is_found_on_the_path_and_nowhere_else(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert not compiled.has_compiler()
    (tmp_path / "clang++").touch(mode=0o755)
    assert compiled.has_compiler()
