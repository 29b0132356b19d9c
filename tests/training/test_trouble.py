"""Failures inside a run: non-finite meta-gradients, and too little memory."""

from __future__ import annotations

import pytest
import torch

from pathaware.core.errors import RunError
from pathaware.core.meta_gradient import Unrolled
from pathaware.training.config import Config
from pathaware.training.distributed import World
from pathaware.training.loop import Objective
from pathaware.training.meta_step import MetaStep
from pathaware.training.progress import StepOutcome
from tests.training.fits import in_memory, resumed
from tests.training.runs import stopped_run
from tests.training.test_training import config


@pytest.fixture(autouse=True)
def _few_skipped(monkeypatch):
    monkeypatch.setattr(Objective, "most_skipped", 10)


def test_meta_gradients_that_stay_unusable_end_the_run_and_keep_what_was_good(tmp_path, monkeypatch):
    run = stopped_run(tmp_path / "run")
    plain = MetaStep.run
    monkeypatch.setattr(
        MetaStep,
        "run",
        lambda self, plan: StepOutcome(plain(self, plan).losses, torch.tensor(torch.nan), torch.tensor(1.0)),
    )
    with pytest.raises(RunError, match="last 10 gradients were not finite: lower"):
        resumed(run.folder)
    assert run.state() is not None


def test_a_few_unusable_meta_gradients_do_not_end_a_run(monkeypatch):
    fit = in_memory(config(iterations=30))
    fit.objective.log_every = 5
    plain, count = MetaStep.run, iter(range(10**6))

    def run(self, plan):
        outcome = plain(self, plan)
        return StepOutcome(outcome.losses, outcome.norm, torch.tensor(float(next(count) % 10 != 0)))

    monkeypatch.setattr(MetaStep, "run", run)
    while not fit.done:
        fit.advance()


def out_of_memory_beyond(tasks: int, monkeypatch) -> None:
    plain = Unrolled.backward

    def backward(self, learner, episodes, weight):
        if len(episodes) > tasks:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(self, learner, episodes, weight)

    monkeypatch.setattr(Unrolled, "backward", backward)


def test_out_of_memory_names_what_helps(monkeypatch):
    out_of_memory_beyond(2, monkeypatch)
    with pytest.raises(RunError, match=r"with 25 tasks side by side: training\.chunk=1"):
        in_memory(config(iterations=3)).advance()


def test_a_step_that_is_repeated_draws_the_same_noise(monkeypatch):
    plain, seen, failing = Unrolled.backward, [], []

    def backward(self, learner, episodes, weight):
        losses = plain(self, learner, episodes, weight)
        seen.append(len(episodes))
        if failing[-1] and len(seen) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return losses

    monkeypatch.setattr(Unrolled, "backward", backward)
    tables = {"problem": {"name": "sine"}, "method": {"name": "mt-net"}}
    training = {"iterations": 5, "tasks": 4, "fit_memory": True, "device": "cpu", "dtype": "float64"}
    results = []
    for fails in (False, True):
        failing.append(fails)
        seen.clear()
        fit = in_memory(Config.from_dict({**tables, "training": training}))
        fit.advance()
        results.append(torch.cat([p.detach().flatten() for p in fit.objective.learner.parameters()]))
    assert seen == [4, 2, 2]
    assert torch.allclose(*results, atol=1e-12)


def test_ranks_draw_noise_of_their_own(monkeypatch):
    seen: list[torch.Tensor] = []

    def run(self, plan):
        seen.append(torch.rand(3))
        return StepOutcome(torch.ones(1), torch.ones(()), torch.zeros(()))

    monkeypatch.setattr(MetaStep, "run", run)
    for world in (World(), SecondRank()):
        in_memory(config(iterations=5), world=world).advance()
    assert not torch.equal(*seen)


class SecondRank(World):
    rank = 1


def test_fitting_memory_goes_on_with_fewer_tasks_at_a_time_and_the_same_numbers(monkeypatch):
    calm = in_memory(config(iterations=5, dtype="float64"))
    out_of_memory_beyond(25, monkeypatch)
    while not calm.done:
        calm.advance()
    out_of_memory_beyond(4, monkeypatch)
    tight = in_memory(config(iterations=5, dtype="float64", fit_memory=True))
    while not tight.done:
        tight.advance()
    assert tight.step.chunk == 4
    for a, b in zip(calm.objective.learner.parameters(), tight.objective.learner.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-12)
