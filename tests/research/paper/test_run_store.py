"""Experiments and their runs: what is missing, what is resumed, how long it takes."""

from __future__ import annotations

import json

import pytest
import torch

from pathaware.core.errors import UsageError
from pathaware.sweep import run_store
from pathaware.sweep.run_store import PlannedRun
from pathaware.training.meta_training import MetaTraining
from pathaware.training.provenance import identity
from pathaware.training.run_folder import Run
from pathaware_research.experiments import Experiment, Results, RunStore, signature
from pathaware_research.paper import time_estimate
from pathaware_research.paper.tables import sine_experiment
from pathaware_research.paper.time_estimate import (
    RunPlanner,
    TimeEstimate,
    TrainingLength,
    estimate_time,
    fit_lengths,
    parse_duration,
)
from tests.training.fits import in_folder

SMALL = {"problem": {"points": 10}, "method": {"steps": 2}, "training": {"tasks": 2}}


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


def experiment(method: str = "maml", **training) -> Experiment:
    settings = {**SMALL, "training": {**SMALL["training"], **training}}
    return sine_experiment(5, method).with_settings(settings)


def store_in(tmp_path) -> RunStore:
    return RunStore(tmp_path, tasks=3)


def missing(store: RunStore, *experiments: Experiment, seeds: int = 1, **length) -> list[PlannedRun]:
    return RunPlanner(store).missing(experiments, TrainingLength(**length), seeds)


def partly_trained(store: RunStore, planned: PlannedRun, iterations: int) -> None:
    with in_folder(Run.create(store.run_folder(planned), planned.config)) as fit:
        for _ in range(iterations):
            fit.advance()


def test_seed_length_and_machinery_do_not_change_the_signature_and_settings_do():
    plain = signature(experiment().config())
    assert signature(experiment().config(seed=3, iterations=7)) == plain
    assert signature(experiment(threads=2, histograms=5, save=3).config()) == plain
    assert signature(experiment(rate=0.5).config()) != plain
    assert signature(experiment("meta-sgd").config()) != plain
    assert signature(experiment().with_settings({"problem": {"shots": 6}}).config()) != plain


def test_what_has_a_record_is_not_trained_again(tmp_path):
    store, both = store_in(tmp_path), (experiment(), experiment("meta-sgd"))
    runs = missing(store, *both, iterations=4, seeds=2)
    assert [run.name for run in runs] == [
        "sine-k5-maml-4-seed0",
        "sine-k5-meta-sgd-4-seed0",
        "sine-k5-maml-4-seed1",
        "sine-k5-meta-sgd-4-seed1",
    ]
    store.train(runs[:1])
    store.train(runs[1:3], at_once=2)
    left = missing(store, *both, iterations=4, seeds=2)
    assert [run.name for run in left] == ["sine-k5-meta-sgd-4-seed1"]
    assert len(missing(store, experiment(), iterations=5)) == 1  # another length is another run
    assert {r.seed for r in store.results().of(experiment())} == {0, 1}


def test_a_run_that_was_stopped_is_resumed(tmp_path):
    store, planned = store_in(tmp_path), experiment(save=2).run(0, 6)
    partly_trained(store, planned, 3)
    (same,) = missing(store, experiment(save=2), budget=1e-9)
    assert same.config.training.iterations == 6  # it keeps its length
    store.train([planned])
    iterations = [row["iteration"] for row in Run.open(store.run_folder(planned)).metrics()]
    assert iterations == [1, 2, 3, 4, 5, 6]
    assert store.results().of(experiment(save=2))[0].iterations == 6


def test_a_run_that_another_process_finishes_meanwhile_is_evaluated_and_not_trained_again(
    tmp_path, monkeypatch
):
    store, planned = store_in(tmp_path), experiment().run(0, 6)
    run = store.open(planned)
    other = in_folder(run)

    def finish(seconds: float) -> None:
        with other:
            while not other.done:
                other.advance()

    monkeypatch.setattr("pathaware.sweep.run_store.time.sleep", finish)
    assert store.complete(planned, lambda: False, patience=20.0)
    assert store.result(planned) is not None
    assert len(run.provenance()) == 1


def test_only_a_folder_in_use_is_waited_for(tmp_path, monkeypatch):
    store, planned = store_in(tmp_path), experiment().run(0, 6)

    def refuse(*arguments, **options):
        raise UsageError("the real reason", field="start")

    monkeypatch.setattr(MetaTraining, "prepare", refuse)
    monkeypatch.setattr("pathaware.sweep.run_store.time.sleep", lambda seconds: pytest.fail("waits"))
    with pytest.raises(UsageError, match="the real reason"):
        store.complete(planned, lambda: False, patience=20.0)


def test_two_processes_can_evaluate_a_run_at_the_same_time(tmp_path, monkeypatch):
    store, planned = store_in(tmp_path), experiment().run(0, 2)
    store.train([planned])
    run, first = store.open(planned), store.record_path(planned).read_bytes()
    plain = run_store.write_record

    def write(path, content):
        plain(path, content)
        monkeypatch.setattr(run_store, "write_record", plain)
        store.record_path(planned).unlink()
        store.evaluate(planned, run)  # the other process, between the draft and the record of this one

    monkeypatch.setattr(run_store, "write_record", write)
    store.evaluate(planned, run)
    assert [path.name for path in store.results_folder.iterdir()] == [store.record_path(planned).name]
    assert json.loads(store.record_path(planned).read_bytes())["result"] == json.loads(first)["result"]


def test_runs_are_evaluated_on_the_device_of_their_configuration(tmp_path, monkeypatch):
    store, planned, devices = store_in(tmp_path), experiment(device="cpu").run(0, 2), []
    load = Run.load
    monkeypatch.setattr(Run, "load", lambda run, *given: devices.append(given) or load(run, *given))
    store.train([planned])
    assert devices == [("cpu",)]
    assert [path.name for path in store.results_folder.iterdir()] == [store.record_path(planned).name]


def test_a_folder_with_a_run_of_other_settings_is_refused(tmp_path):
    store = store_in(tmp_path)
    store.train([experiment().run(0, 2)])
    with pytest.raises(UsageError, match=r"out: .*maml-2-seed0 holds a run of other settings"):
        store.train([experiment(rate=0.5).run(0, 2)])
    assert store.trained(experiment()) is not None
    assert store.trained(experiment(rate=0.5)) is None


def test_rows_that_must_be_equal_take_the_length_of_what_was_begun(tmp_path):
    store = store_in(tmp_path)
    store.train([experiment().run(0, 3)])
    runs = missing(store, experiment(), experiment("meta-sgd"), budget=1e-9, equal_iterations=True)
    assert [run.name for run in runs] == ["sine-k5-meta-sgd-3-seed0"]


def test_a_training_that_two_rows_share_is_made_once(tmp_path):
    twin = Experiment("another-name", experiment().tables)
    assert len(missing(store_in(tmp_path), experiment(), twin, iterations=2)) == 1


def test_a_new_record_is_of_its_precision_validation_and_version_of_the_method(tmp_path):
    store, planned = store_in(tmp_path), experiment().run(0, 2)
    store.train([planned])
    assert len(store.results().of(experiment())) == 1
    assert not store.results().of(experiment(precision="fp32"))
    assert not store.results().of(experiment(validate=1))
    assert store.results().of(experiment(threads=1))

    path = store.record_path(planned)
    record = json.loads(path.read_text())
    assert record["identity"] == identity(planned.config)
    del record["identity"]  # as records were before
    path.write_text(json.dumps(record))
    assert store.results().of(experiment())
    assert not store.results().of(experiment(precision="fp32"))  # its configuration says which it was
    assert not store.results().of(experiment(validate=1))


def test_a_run_of_an_older_version_of_the_method_is_not_evaluated_as_the_new_one(tmp_path):
    store, planned = store_in(tmp_path), experiment().run(0, 2)
    store.train([planned])
    path = store.record_path(planned)
    record = json.loads(path.read_text())
    record["identity"]["method_version"] = 0
    path.write_text(json.dumps(record))
    assert not store.results().of(experiment())
    with pytest.raises(UsageError, match="holds a run of another version of maml"):
        store.train([planned])


def test_a_budget_is_shared_in_proportion_to_each_length():
    estimates = [TimeEstimate(overhead=10, per_iteration=0.1), TimeEstimate(overhead=0, per_iteration=0.3)]
    assert fit_lengths(estimates, [1000, 1000], 210) == [500, 500]
    assert fit_lengths(estimates, [1000, 1000], 1e6) == [1000, 1000]
    assert fit_lengths(estimates, [1000, 1000], 10 + 0.4 * 123) == [120, 120]  # two digits are enough


@pytest.mark.parametrize(("scale", "least", "shown"), [(1, 11, "11 s"), (20, 240, "4 min")])
def test_the_least_budget_that_an_error_states_is_enough(scale, least, shown):
    """Runs get equal fractions of their lengths, so one iteration of the shorter takes five of the longer."""
    estimates = [TimeEstimate(8 * scale, 0.1 * scale), TimeEstimate(0, 0.5 * scale)]
    with pytest.raises(UsageError, match=rf"budget: not enough .*; at least {shown}$"):
        fit_lengths(estimates, [200, 1000], 10 * scale)
    assert fit_lengths(estimates, [200, 1000], least)[0] == 1


def test_begun_runs_take_their_part_of_a_budget_and_limit_the_others():
    estimates = [TimeEstimate(overhead=0, per_iteration=0.1)]
    assert fit_lengths(estimates, [1000], 70, reserved=50) == [200]
    assert fit_lengths(estimates, [100], 1e6, most=29 / 100) == [29]
    with pytest.raises(UsageError, match=r"budget: not enough .*at least 51 s"):
        fit_lengths(estimates, [1000], 50, reserved=50)


def test_a_budget_is_wall_time_of_all_workers():
    estimates = [TimeEstimate(overhead=0, per_iteration=0.1)] * 4
    assert fit_lengths(estimates, [1000] * 4, 200) == [500] * 4
    assert fit_lengths(estimates, [1000] * 4, 100, workers=2) == [500] * 4
    # One worker trains two of three.
    assert fit_lengths(estimates[:3], [1000] * 3, 100, workers=2) == [500] * 3
    assert fit_lengths(estimates, [1000] * 4, 100, workers=9) == [1000] * 4
    assert fit_lengths(estimates[:1], [1000], 100, begun=[90, 90], workers=2) == [100]
    assert fit_lengths(estimates, [1000] * 4, 100, workers=2, equal_time=True) == [500] * 4
    with pytest.raises(UsageError, match=r"budget: not enough .*at least 51 s"):
        fit_lengths(estimates[:1], [1000], 50, reserved=50, workers=2)


def test_runs_are_timed_with_the_cores_of_one_worker(tmp_path, monkeypatch):
    asked = []

    def estimate(config, tasks):
        asked.append(config.training.threads)
        torch.set_num_threads(1)  # as training does
        return TimeEstimate(10, 0)

    monkeypatch.setattr(time_estimate, "estimate_time", estimate)
    cores = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        images = Experiment(
            "glyphs", {"problem": {"name": "classification", "data": "glyphs"}, "method": {"name": "maml"}}
        )
        for workers, threads, seconds in ((1, 0, 60), (2, 2, 30), (4, 1, 20), (8, 1, 20)):
            planner = RunPlanner(store_in(tmp_path), workers)
            assert planner.seconds([images.run(seed, 5) for seed in range(6)]) == seconds
            assert asked.pop() == threads
            assert torch.get_num_threads() == 4
        waves = [experiment(threads=1).run(seed, 6) for seed in range(6)]
        assert RunPlanner(store_in(tmp_path), 3).seconds(waves) == 20
    finally:
        torch.set_num_threads(cores)


@pytest.mark.parametrize("trained", [0, 50, 99])
def test_a_reproduction_that_was_interrupted_goes_on_as_it_was_planned(tmp_path, monkeypatch, trained):
    monkeypatch.setattr(time_estimate, "estimate_time", lambda config, tasks: TimeEstimate(0, 1))
    several = [experiment(m, iterations=1000, save=1) for m in ("maml", "fomaml", "meta-sgd")]
    store = store_in(tmp_path)
    planned = missing(store, *several, budget=300)
    assert [run.config.training.iterations for run in planned] == [99, 99, 99]
    partly_trained(store, planned[0], trained)
    again = RunPlanner(store)
    assert again.missing(several, TrainingLength(budget=300)) == planned
    assert again.seconds(planned) == pytest.approx(3 * 99 - trained)
    # A smaller budget is what the run that was begun leaves of it.
    shorter = missing(store, *several, budget=199 - trained)
    assert [run.config.training.iterations for run in shorter] == [99, 49, 49]


def test_an_estimate_counts_evaluation_and_validation(monkeypatch):
    config = experiment(validate=10, validation_tasks=5).config()
    times = iter([0.02, 0.4])
    monkeypatch.setattr(time_estimate, "_timed", lambda work, config: next(times))
    estimate = estimate_time(config, tasks=40)
    per_task = 0.4 / 40
    assert estimate.per_iteration == pytest.approx(0.02 + per_task * 5 / 10)
    assert estimate.overhead == pytest.approx(per_task * 40 + per_task * 5)


def test_an_estimate_leaves_out_what_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr(time_estimate, "estimate_time", lambda config, tasks: TimeEstimate(5, 2))
    store, planned = store_in(tmp_path), experiment(save=2).run(0, 6)
    planner = RunPlanner(store)
    assert planner.seconds([planned]) == 17
    partly_trained(store, planned, 4)
    assert planner.seconds([planned]) == 4
    store.train([planned])
    assert planner.seconds([planned]) == 0


def test_times_are_read_as_people_write_them_and_others_are_refused():
    assert [parse_duration(text) for text in ("90s", "10m", "1h30m", "0.5d")] == [90, 600, 5400, 43200]
    for text in ("", "10", "m", "10 m", "-5m", "10x"):
        with pytest.raises(UsageError, match=r"budget: .* is not a duration"):
            parse_duration(text)


def test_a_file_that_is_not_a_record_is_named(tmp_path):
    (tmp_path / "other.json").write_text('{"bench": 1}')
    assert not Results.read(tmp_path).found
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UsageError, match=r"results: .*broken\.json is not the record of a run"):
        Results.read(tmp_path)


def test_of_several_lengths_the_longest_is_shown_or_the_common_one(tmp_path):
    store = store_in(tmp_path)
    store.train([experiment().run(0, 2), experiment().run(0, 4), experiment("meta-sgd").run(0, 2)])
    results = store.results()
    assert [r.iterations for r in results.of(experiment())] == [4]
    assert results.common_length([experiment(), experiment("meta-sgd")]) == 2
    assert [r.iterations for r in results.of(experiment(), 2)] == [2]
    inductive = json.loads((tmp_path / "results" / "sine-k5-maml-4-seed0.json").read_text())
    inductive["result"]["queries"] = "alone"
    (tmp_path / "results" / "sine-k5-maml-4-seed0.json").write_text(json.dumps(inductive))
    assert [r.iterations for r in store.results().of(experiment())] == [2]  # the paper's way is transductive
