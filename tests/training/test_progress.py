"""What a person sees while a run trains."""

from __future__ import annotations

import re
import time

from pathaware.inference.trained_model import find_run
from pathaware.training import loop, progress
from pathaware.training.evaluation import evaluate
from pathaware.training.meta_training import MetaTraining
from pathaware.training.progress import EventFile, Progress, ProgressDisplay
from pathaware.training.run_folder import Run
from tests.training.fits import in_folder
from tests.training.runs import glyphs, sine


def slow(execute, seconds: float):
    def later(plan, rate):
        time.sleep(seconds)
        return execute(plan, rate)

    return later


def test_a_slow_run_moves_between_log_entries(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "REFRESH", 0.05)
    run = Run.create(tmp_path / "run", sine(iterations=900, validate=0, save=0, histograms=0))
    with in_folder(run, display=ProgressDisplay) as training:
        training.display.interval = 0.0
        training.execute = slow(training.execute, 0.1)
        for _ in range(5):
            training.advance()
    lines = [line for line in capsys.readouterr().err.splitlines() if "/900" in line]
    assert len(lines) >= 4  # the first log entry would be that of iteration 9
    for number, line in enumerate(lines[-3:], 3):
        assert re.search(rf"{number}/900, loss \d+\.\d+, [\d.]+ (it/s|s/it), \d+ (s|min) left", line), line
    assert "nan" not in "".join(lines)


def test_a_long_run_on_a_cpu_says_how_long_and_what_would_be_faster(tmp_path, monkeypatch, capsys):
    run = Run.create(tmp_path / "run", glyphs().with_training(iterations=100_000, save=0, validate=0))
    with in_folder(run, display=ProgressDisplay) as training:
        training.execute = slow(training.execute, 0.05)
        for _ in range(6):
            training.advance()
    told = [line for line in capsys.readouterr().err.splitlines() if "on this CPU" in line]
    assert len(told) == 1
    assert re.match(r"about \d+ (min|h \d+ min) on this CPU, 0\.\d\d s per iteration", told[0])
    assert "smaller problem.width" in told[0]


def test_a_short_run_says_nothing_of_the_kind(tmp_path, capsys):
    run = Run.create(tmp_path / "run", sine(iterations=10, validate=0))
    with in_folder(run, display=ProgressDisplay) as training:
        for _ in range(5):
            training.advance()
    assert "on this CPU" not in capsys.readouterr().err


def test_advice_names_settings_that_the_run_has():
    assert "width" not in MetaTraining(sine()).faster()
    assert "prototypical" in MetaTraining(glyphs()).faster()
    assert loop.LONG > 60


def test_counted_work_says_how_long_the_rest_takes(monkeypatch, capsys):
    clock = iter((0.0, 5.0, 5.0, 20.0, 20.0, 20.0, 40.0, 40.0))
    monkeypatch.setattr("pathaware.training.progress.time.monotonic", lambda: next(clock))
    display = ProgressDisplay("evaluation", 80)
    display.count(10)  # too early for a line
    display.count(40)
    display.count(80)  # what follows says that it is done
    assert capsys.readouterr().err == "evaluation: 40/80, 20 s left\n"


def test_an_evaluation_counts_its_tasks():
    run = Run.open(find_run("sine"))
    counts: list[int] = []
    evaluate(run.load("cpu"), run.config.problem, tasks=7, batch=3, progress=counts.append)
    assert counts == [3, 6, 7]


def test_a_quiet_display_shows_nothing(capsys):
    display = ProgressDisplay("run", 10, quiet=True)
    display.shown_at -= 100
    assert not display.due
    display.note("a line")
    assert capsys.readouterr().err == ""


def test_tensorboard_reads_the_entries_and_hides_those_after_the_saved_state(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = EventFile(tmp_path)
    for iteration in (10, 20, 30):
        first.add(Progress(iteration, 1.0 / iteration, 1.0, 2.0, 0, 1e-3, 5.0, validation=0.5))
    first.close()
    time.sleep(0.01)  # files are ordered by the millisecond in their names
    second = EventFile(tmp_path, resumed_after=20)
    second.add(Progress(30, 7.0, 1.0, 2.0, 0, 1e-3, 5.0))
    second.close()
    board = EventAccumulator(str(tmp_path))
    board.Reload()
    assert [event.step for event in board.Scalars("train/loss")] == [10, 20, 30]
    assert board.Scalars("train/loss")[-1].value == 7.0
    assert [event.value for event in board.Scalars("train/validation")] == [0.5, 0.5]
