"""Runs that are killed, stopped, started twice, or cannot write to their folder."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pathaware.core.errors import RunError, UsageError
from pathaware.training.distributed import StopRequest
from pathaware.training.loop import Fit
from pathaware.training.run_files import FolderLock
from pathaware.training.run_folder import Run
from pathaware.training.train import train
from tests.forked import CONTEXT, Command
from tests.training.fits import in_folder, resumed
from tests.training.runs import assert_same_end, glyphs, sine, stopped_run


@pytest.mark.slow
@pytest.mark.parametrize("settings", [sine(), glyphs()], ids=["sine", "glyphs"])
def test_a_run_killed_twenty_times_ends_as_one_that_was_not(tmp_path, settings):
    """At random moments; `tests/faults` kills a run at each of its changes to a file."""
    calm = train(settings, tmp_path / "calm")
    moments, reached = random.Random(0), 0
    for _ in range(20):
        process = CONTEXT.Process(target=_train, args=(settings, tmp_path / "run"))
        process.start()
        while _saved(tmp_path / "run") <= reached and process.is_alive():  # it must have got somewhere
            time.sleep(0.005)
        process.join(moments.uniform(0, 0.05))
        process.kill()
        process.join()
        reached = _saved(tmp_path / "run")
    run = train(settings, tmp_path / "run", resume=True)
    assert_same_end(run, calm)
    assert not list(run.folder.glob("*.new"))


def _saved(folder: Path) -> int:
    """The iteration of the last state; none is left once a run has come to its end."""
    states = [int(path.stem.removeprefix("state-")) for path in folder.glob("state-*.safetensors")]
    return max(states, default=0)


def _train(settings, folder: Path) -> None:
    train(settings, folder, resume=True)


def test_a_second_process_on_the_same_run_is_refused(tmp_path):
    run = stopped_run(tmp_path / "run")
    with in_folder(run):
        second = CONTEXT.Process(target=_exit_two_if_refused, args=(run.folder,))
        second.start()
        second.join()
        assert second.exitcode == 2
    assert not (run.folder / "run.lock").exists()
    with in_folder(run) as fit:  # the lock is free again
        fit.advance()


def _exit_two_if_refused(folder: Path) -> None:
    try:
        resumed(folder)
    except UsageError as error:
        sys.exit(2 if "is being trained by another process" in str(error) else 3)


LONG = ("--tasks", "2", "--set", "problem.points=10", "--iterations", "5000")


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_lets_the_step_end_saves_and_says_how_to_go_on(tmp_path, signum, code):
    folder = tmp_path / "a run"
    command = Command(["train", "sine", *LONG, "--out", str(folder)], tmp_path)
    command.wait_until((folder / "metrics.jsonl").exists)
    command.send(signum)
    assert command.wait() == code
    assert "error: " not in command.err
    assert "Traceback" not in command.err
    state = Run.open(folder).state()
    assert state is not None
    last = f"stopped after iteration {state.iteration}; resume with: pathaware train --resume '{folder}'"
    assert command.err.splitlines()[-1] == last
    assert state.iteration > 0


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signum == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _advance(fit: Fit, iterations: int) -> None:
    for _ in range(iterations):
        fit.advance()


def test_a_folder_that_vanishes_ends_the_run_with_one_line(tmp_path):
    run = Run.create(tmp_path / "run", sine())
    with in_folder(run) as fit:
        fit.advance()
        shutil.rmtree(run.folder)
        with pytest.raises(RunError, match=r"cannot be written \(No such file"):
            _advance(fit, 30)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """As somebody who cannot write there: root, as whom tests may run, could."""
    folder.chmod(0o555)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(65534)
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)


def test_a_read_only_folder_is_refused_before_anything_is_trained():
    refused = pytest.raises(UsageError, match=r"out: .* cannot be written \(Permission denied\)")
    with tempfile.TemporaryDirectory() as name, read_only(Path(name)), refused:
        Run.create(Path(name) / "run", sine())


def test_a_folder_that_becomes_read_only_ends_the_run_with_one_line_and_its_last_state():
    with tempfile.TemporaryDirectory() as name:
        run = Run.create(Path(name) / "run", sine(save=10))
        Path(name).chmod(0o755)
        with in_folder(run) as fit:
            while not run.state():
                fit.advance()
            with (
                read_only(run.folder),
                pytest.raises(RunError, match=r"cannot be written \(Permission denied.*its state after 10 "),
            ):
                _advance(fit, 30)
        assert Run.open(run.folder).state().iteration == 10


def test_a_lock_is_released_in_a_folder_that_became_read_only(tmp_path):
    lock = FolderLock(tmp_path, "taken")
    with read_only(tmp_path):
        lock.release()
    FolderLock(tmp_path, "taken").release()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_ten_thousand_iterations_take_no_more_memory_than_the_first(tmp_path):
    run = Run.create(tmp_path / "run", sine(iterations=10_000, save=500, validate=500, histograms=500))
    before = len(os.listdir("/proc/self/fd"))
    with in_folder(run) as fit:
        while fit.iteration < 2_000:
            fit.advance()
        warm = resident()
        while not fit.done:
            fit.advance()
        assert resident() < 1.01 * warm
    assert len(os.listdir("/proc/self/fd")) <= before
    assert json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[-1])["iteration"] == 10_000
