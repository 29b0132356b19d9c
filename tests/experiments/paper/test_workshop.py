"""Trials: what is missing, what is continued, and how long it may take."""

from __future__ import annotations

import json

import pytest
import torch

from pathaware.core.errors import UsageError
from pathaware.experiments import run_store as module
from pathaware.experiments.paper.tables import Trial, signature, sine_trial
from pathaware.experiments.paper.time_estimate import Pace, fitting, measure, seconds, spoken
from pathaware.experiments.run_store import Length, Order, Results, Workshop
from pathaware.training.run_folder import Run
from pathaware.training.session import TrainingSession

SMALL = {"problem": {"points": 10}, "method": {"steps": 2}, "training": {"tasks": 2}}


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


def trial(method: str = "maml", **training) -> Trial:
    settings = {**SMALL, "training": {**SMALL["training"], **training}}
    return sine_trial(5, method).changed(settings)


def shop(tmp_path) -> Workshop:
    return Workshop(tmp_path, tasks=3)


def test_seed_length_and_machinery_do_not_tell_trainings_apart_and_settings_do():
    plain = signature(trial().config())
    assert signature(trial().config(seed=3, iterations=7)) == plain
    assert signature(trial(threads=2, histograms=5, save=3).config()) == plain
    assert signature(trial(rate=0.5).config()) != plain
    assert signature(trial("meta-sgd").config()) != plain
    assert signature(trial().changed({"problem": {"shots": 6}}).config()) != plain


def test_what_has_a_record_is_not_made_again(tmp_path):
    made = shop(tmp_path)
    orders = made.orders([trial(), trial("meta-sgd")], Length(iterations=4), seeds=2)
    assert [order.name for order in orders] == [
        "sine-k5-maml-4-seed0",
        "sine-k5-maml-4-seed1",
        "sine-k5-meta-sgd-4-seed0",
        "sine-k5-meta-sgd-4-seed1",
    ]
    made.make(orders[:1])
    made.make(orders[1:3], together=2)
    left = made.orders([trial(), trial("meta-sgd")], Length(iterations=4), seeds=2)
    assert [order.name for order in left] == ["sine-k5-meta-sgd-4-seed1"]
    assert len(made.orders([trial()], Length(iterations=5))) == 1  # another length is another run
    assert {r.seed for r in made.results().of(trial())} == {0, 1}


def test_a_run_that_was_stopped_is_continued(tmp_path):
    made, order = shop(tmp_path), Order(trial(save=2), 0, 6)
    with TrainingSession(Run.create(tmp_path / "runs" / order.name, order.config), quiet=True) as session:
        for _ in range(3):
            session.advance()
    assert made.orders([order.trial], Length(budget=1e-9))[0].iterations == 6  # it keeps its length
    made.make([order])
    iterations = [row["iteration"] for row in Run.open(tmp_path / "runs" / order.name).metrics()]
    assert iterations == [1, 2, 3, 4, 5, 6]
    assert made.results().of(order.trial)[0].iterations == 6


def test_a_folder_with_a_run_of_other_settings_is_refused(tmp_path):
    made = shop(tmp_path)
    made.make([Order(trial(), 0, 2)])
    with pytest.raises(UsageError, match=r"--out: .*maml-2-seed0 holds a run of other settings"):
        made.make([Order(trial(rate=0.5), 0, 2)])
    assert made.trained(trial()) is not None
    assert made.trained(trial(rate=0.5)) is None


def test_rows_that_must_be_equal_take_the_length_of_what_was_begun(tmp_path):
    made = shop(tmp_path)
    made.make([Order(trial(), 0, 3)])
    orders = made.orders([trial(), trial("meta-sgd")], Length(budget=1e-9, equal=True))
    assert [(order.trial.name, order.iterations) for order in orders] == [("sine-k5-meta-sgd", 3)]


def test_a_training_that_two_rows_share_is_made_once(tmp_path):
    twin = Trial("another-name", trial().tables)
    assert len(shop(tmp_path).orders([trial(), twin], Length(iterations=2))) == 1


def test_a_budget_is_shared_in_proportion_to_each_length():
    paces = [Pace(besides=10, each=0.1), Pace(besides=0, each=0.3)]
    assert fitting(paces, [1000, 1000], 210) == [500, 500]
    assert fitting(paces, [1000, 1000], 1e6) == [1000, 1000]
    assert fitting(paces, [1000, 1000], 10 + 0.4 * 123) == [120, 120]  # two digits are enough
    with pytest.raises(UsageError, match=r"--budget: not enough .*at least 10 s"):
        fitting(paces, [1000, 1000], 10)


def test_a_pace_counts_judging_and_validation(monkeypatch):
    config = trial(validate=10, validation_tasks=5).config()
    times = iter([0.02, 0.4])
    monkeypatch.setattr("pathaware.experiments.paper.time_estimate._timed", lambda work, config: next(times))
    pace = measure(config, tasks=40)
    each = 0.4 / 40
    assert pace.each == pytest.approx(0.02 + each * 5 / 10)
    assert pace.besides == pytest.approx(each * 40 + each * 5)


def test_an_estimate_leaves_out_what_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "measure", lambda config, tasks: Pace(besides=5, each=2))
    made, order = shop(tmp_path), Order(trial(save=2), 0, 6)
    assert made.seconds([order]) == 17
    with TrainingSession(Run.create(tmp_path / "runs" / order.name, order.config), quiet=True) as session:
        for _ in range(4):
            session.advance()
    assert made.seconds([order]) == 4
    made.make([order])
    assert made.seconds([order]) == 0


@pytest.mark.parametrize(("text", "expected"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("0.5d", 43200)])
def test_times_are_read_as_people_write_them(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "10", "m", "10 m", "-5m", "10x"])
def test_other_times_are_refused(text):
    with pytest.raises(UsageError, match=r"--budget: .* is no time"):
        seconds(text)


def test_durations_are_spoken_in_fitting_units():
    assert [spoken(s) for s in (0.2, 40, 720, 12600)] == ["1 s", "40 s", "12 min", "3.5 h"]


def test_a_file_that_is_no_record_is_named(tmp_path):
    (tmp_path / "other.json").write_text('{"bench": 1}')
    assert not Results.read(tmp_path).found
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UsageError, match=r"--results: .*broken\.json is no record of a run"):
        Results.read(tmp_path)


def test_of_several_lengths_the_longest_is_shown_or_the_common_one(tmp_path):
    made = shop(tmp_path)
    made.make([Order(trial(), 0, 2), Order(trial(), 0, 4), Order(trial("meta-sgd"), 0, 2)])
    results = made.results()
    assert [r.iterations for r in results.of(trial())] == [4]
    assert results.common_length([trial(), trial("meta-sgd")]) == 2
    assert [r.iterations for r in results.of(trial(), 2)] == [2]
    inductive = json.loads((tmp_path / "results" / "sine-k5-maml-4-seed0.json").read_text())
    inductive["result"]["transductive"] = False
    (tmp_path / "results" / "sine-k5-maml-4-seed0.json").write_text(json.dumps(inductive))
    assert [r.iterations for r in made.results().of(trial())] == [2]  # the paper judges transductively
