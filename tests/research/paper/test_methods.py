"""The table of all methods: the same time for each."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from pathaware.core.errors import UsageError
from pathaware.methods import METHODS
from pathaware.training.tables import NOTHING
from pathaware_research.experiments import Result, Results, RunStore
from pathaware_research.pages.methods_page import compared_on_images, glyph_ranking
from pathaware_research.paper.method_table import method_experiment
from pathaware_research.paper.tables import BEYOND, LABELS
from pathaware_research.paper.time_estimate import RunPlanner, TimeEstimate, TrainingLength, fit_lengths
from pathaware_research.records import read_results

ROOT = Path(__file__).parents[3]


def test_timed_runs_get_the_same_seconds():
    fast, slow = TimeEstimate(2, 0.1), TimeEstimate(10, 0.5)
    assert fit_lengths([fast, slow], [60_000, 60_000], 12 + 200, equal_time=True) == [1000, 200]
    with pytest.raises(UsageError, match="budget: not enough for one iteration of each run; at least 13 s"):
        fit_lengths([fast, slow], [60_000, 60_000], 12.5, equal_time=True)
    assert fit_lengths([fast, slow], [60_000, 60_000], 13, equal_time=True) == [5, 1]


def test_the_time_of_what_is_done_is_not_given_to_the_others(tmp_path, monkeypatch):
    """Else the rows trained after a stop would have had longer."""
    planner = RunPlanner(RunStore(tmp_path))
    experiments = [method_experiment("glyphs", name) for name in ("maml", "anil", "pamela")]
    monkeypatch.setattr(planner, "estimate", lambda config: TimeEstimate(0, 1))
    length = TrainingLength(budget=300, equal_time=True)

    def lengths() -> list[int]:
        return [run.config.training.iterations for run in planner.missing(experiments, length)]

    assert lengths() == [100, 100, 100]
    monkeypatch.setattr(planner, "_begun", lambda each, results: 70 if each is experiments[0] else None)
    assert lengths() == [70, 100, 100]
    assert planner.missing([], length) == []  # where the data set is not imported


def test_methods_are_trained_and_ranked(reproduce, tmp_path):
    tiny = ("--tasks", "3", "--set", "training.tasks=2", "--set", "problem.width=4")
    chosen = ("--only", "prototypical", "--only", "anil", "--data", "glyphs", "--iterations", "2")
    code, shown, told = reproduce("methods", *chosen, *tiny, out=tmp_path)
    assert code == 0
    assert "methods: 2 runs to train" in told
    rows = [line for line in shown.splitlines() if line.startswith(("| prototypical", "| anil"))]
    values = [float(row.split("|")[6].split("±")[0]) for row in rows]
    assert values == sorted(values, reverse=True)
    names = [path.stem for path in (tmp_path / "results").glob("*.json")]
    assert sorted(names) == ["methods-glyphs-anil-2-seed0", "methods-glyphs-prototypical-2-seed0"]
    assert len(Results.read(tmp_path / "results", ["methods-glyphs-anil"]).found) == 1


def learned(found: Result) -> bool:
    before, *_, after = found.record["result"]["accuracy_per_step"]
    return bool(after > before + 0.1)


def test_every_method_has_learned_on_glyphs():
    experiments = [method_experiment("glyphs", name) for name in METHODS]
    results = read_results(ROOT / "results", [each.name for each in experiments])
    results = results.in_one_precision(experiments)  # as the table shows them
    for name in METHODS:
        found = results.of(method_experiment("glyphs", name))
        assert found, name
        assert all(map(learned, found)), name


def test_every_method_with_a_result_has_learned_on_cifar_fs():
    compared = compared_on_images(ROOT / "results")
    assert set(compared) == set(LABELS | BEYOND)
    for name, cells in compared.items():
        assert all(learned(found) for results in cells.values() for found in results), name
        if name in ("maml", "meta-sgd", "pamela-direct"):  # the tables of differences compare these
            assert all(cells.values()), name


def test_rows_of_the_equal_time_table_took_the_same_cpu_time():
    rows = glyph_ranking(ROOT / "results").rows
    seconds = {row.cells[0]: float(row.cells[-1]) for row in rows if row.cells[-1] != NOTHING}
    middle = statistics.median(seconds.values())
    assert {row.cells[0].removesuffix("-direct") for row in rows} == set(METHODS)
    assert seconds.pop("l2l") < 2 * middle  # the page says so
    for name, each in seconds.items():
        assert 0.75 < each / middle < 1.25, name
