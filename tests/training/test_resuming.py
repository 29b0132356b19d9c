"""A run that was stopped resumes as if it had not been."""

from __future__ import annotations

import json
import os
import signal

import pytest
import torch

from pathaware.core.errors import Stopped
from pathaware.training.loop import Fit, run_to_end
from pathaware.training.run_folder import Run
from pathaware.training.train import train
from tests.training.fits import in_folder, in_memory, resumed
from tests.training.runs import assert_same_end
from tests.training.test_training import config


class Killed(Exception):
    """Stands for what ends a process in the middle of an iteration."""


def settings(**training):
    return config(**{"iterations": 30, "save": 10, "validate": 10, "validation_tasks": 5, **training})


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> Run:
    """A run that nothing disturbed."""
    torch.set_default_dtype(torch.float32)
    return train(settings(), tmp_path_factory.mktemp("calm") / "run")


@pytest.fixture
def at_iteration(monkeypatch):
    """Do something at the beginning of an iteration."""
    plain = Fit.advance

    def patched(iteration, action):
        def advance(self):
            if self.iteration == iteration:
                action()
            return plain(self)

        monkeypatch.setattr(Fit, "advance", advance)

    yield patched
    monkeypatch.undo()


def kill() -> None:
    raise Killed


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("moment", [10, 25])
def test_a_run_killed_at_any_moment_ends_as_one_that_was_not(tmp_path, calm, at_iteration, moment):
    at_iteration(moment, kill)
    with pytest.raises(Killed):
        train(settings(), tmp_path / "killed")
    at_iteration(None, kill)
    assert not Run.open(tmp_path / "killed").finished
    assert_same_end(train(settings(), tmp_path / "killed", resume=True), calm)


def test_a_line_cut_off_by_the_kill_is_dropped_when_the_run_goes_on(tmp_path):
    run = Run.create(tmp_path / "run", settings())
    with in_folder(run) as fit:
        for _ in range(15):
            fit.advance()
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 1')
    resumed(run.folder)
    found = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in found] == list(range(1, 31))


def test_runs_trained_side_by_side_end_as_each_does_alone(tmp_path, calm):
    both = [settings(seed=0), settings(seed=1, iterations=20)]
    runs = [Run.create(tmp_path / f"s{c.training.seed}", c) for c in both]
    run_to_end(map(in_folder, runs))
    assert_same_end(runs[0], calm)
    assert_same_end(runs[1], train(both[1], tmp_path / "alone"))


def test_a_run_that_another_process_finished_after_it_was_opened_is_left_as_it_is(tmp_path):
    first, second = (Run.create(tmp_path / f"s{seed}", settings(seed=seed)) for seed in (0, 1))
    resumed(first.folder)
    before = {path.name: path.read_bytes() for path in first.folder.iterdir()}
    run_to_end(map(in_folder, [first, second]))
    assert {path.name: path.read_bytes() for path in first.folder.iterdir()} == before
    assert second.finished


def test_a_signal_in_the_last_iteration_is_raised_but_a_complete_run_is_returned(tmp_path, at_iteration):
    """The caller of `run_to_end` may have other runs to train; what follows `train` is the evaluation."""
    at_iteration(29, terminate)
    run = Run.create(tmp_path / "run", settings())
    with pytest.raises(Stopped, match="after iteration 30") as stopped:
        run_to_end(map(in_folder, [run]))
    assert stopped.value.folders == [run.folder]
    assert run.finished
    assert train(settings(), tmp_path / "other").finished


def test_a_signal_while_fits_are_made_ends_them_before_the_first_step():
    """The first step may include a minute of compilation."""

    def fits():
        yield in_memory(settings())
        terminate()

    with pytest.raises(Stopped, match="in the first step"):
        run_to_end(fits())
