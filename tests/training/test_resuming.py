"""A run that was stopped resumes as if it had not been."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch
from pathaware.training.session import (
    TrainingSession,
    train_distributed,
    train_or_open,
    train_run,
    train_sessions,
    train_without_writing,
)
from pathaware.training.trainer import Trainer

from pathaware.core.errors import Stopped
from pathaware.training.distributed import ALONE
from pathaware.training.run_folder import Run
from tests.training.test_training import config


class Killed(Exception):
    """Stands for what ends a process in the middle of an iteration."""


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


def settings(**training):
    return config(**{"iterations": 30, "save": 10, "validate": 10, "validation_tasks": 5, **training})


def parameters(run: Run) -> dict[str, torch.Tensor]:
    return run.load().state_dict()


def rows(run: Run) -> list[dict]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in run.metrics()]


@pytest.mark.parametrize("moment", [4, 10, 19, 25])
def test_a_run_killed_at_any_moment_ends_as_one_that_was_not(tmp_path, monkeypatch, moment):
    calm = train_run(settings(), tmp_path / "calm", quiet=True)
    plain = Trainer.advance

    def advance(self):
        if self.iteration == moment:
            raise Killed
        return plain(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "advance", advance)
        with pytest.raises(Killed):
            train_run(settings(), tmp_path / "killed", quiet=True)
    assert not Run.open(tmp_path / "killed").finished
    again = train_or_open(settings(), tmp_path / "killed", quiet=True)
    assert again.finished
    assert rows(again) == rows(calm)
    for name, value in parameters(calm).items():
        assert torch.equal(parameters(again)[name], value), name


def test_a_saved_state_brings_back_the_optimiser_too(tmp_path):
    trainer = Trainer(settings())
    for _ in range(7):
        trainer.advance()
    trainer.state().write(tmp_path / "state.safetensors")
    restored = Trainer(settings(), type(trainer.state()).read(tmp_path / "state.safetensors"))
    for _ in range(5):
        trainer.advance()
        restored.advance()
    assert restored.iteration == 12
    for a, b in zip(trainer.learner.parameters(), restored.learner.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_line_cut_off_by_the_kill_is_dropped_when_the_run_goes_on(tmp_path):
    run = Run.create(tmp_path / "run", settings())
    with TrainingSession(run, quiet=True) as session:
        for _ in range(15):
            session.advance()
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 1')
    train_sessions([run], quiet=True)
    found = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in found] == list(range(1, 31))


def test_runs_trained_side_by_side_end_as_each_does_alone(tmp_path):
    both = [settings(seed=0), settings(seed=1, iterations=20)]
    runs = train_sessions([Run.create(tmp_path / f"s{c.training.seed}", c) for c in both], quiet=True)
    for run, each in zip(runs, both, strict=True):
        alone = train_run(each, tmp_path / f"alone{each.training.seed}", quiet=True)
        assert all(torch.equal(v, parameters(alone)[k]) for k, v in parameters(run).items())


def test_a_run_that_another_process_finished_after_it_was_opened_is_left_as_it_is(tmp_path):
    first, second = (Run.create(tmp_path / f"s{seed}", settings(seed=seed)) for seed in (0, 1))
    train_sessions([Run.open(first.folder)], quiet=True)
    before = {path.name: path.read_bytes() for path in first.folder.iterdir()}
    train_sessions([first, second], quiet=True)
    assert {path.name: path.read_bytes() for path in first.folder.iterdir()} == before
    assert second.finished


@pytest.fixture
def signal_in_the_last_iteration(monkeypatch):
    plain = Trainer.advance

    def advance(self):
        if self.iteration == 29:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(self)

    monkeypatch.setattr(Trainer, "advance", advance)


@pytest.mark.usefixtures("signal_in_the_last_iteration")
def test_a_signal_in_the_last_iteration_is_raised_with_the_folder(tmp_path):
    """The caller may have other runs to train."""
    with pytest.raises(Stopped, match="after iteration 30") as stopped:
        train_run(settings(), tmp_path / "run", quiet=True)
    assert stopped.value.folders == [tmp_path / "run"]
    assert Run.open(tmp_path / "run").finished


@pytest.mark.usefixtures("signal_in_the_last_iteration")
def test_a_signal_in_the_last_iteration_does_not_keep_a_run_from_its_evaluation(tmp_path):
    assert train_distributed(settings(), tmp_path / "run", ALONE, quiet=True).finished
    train_without_writing(settings(), ALONE)  # the other ranks go on to the evaluation, too
