"""The table of all methods: the same time for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from pathaware.core.errors import UsageError
from pathaware.experiments.paper.method_table import method_table, trial
from pathaware.experiments.paper.time_estimate import Pace, fitting
from pathaware.experiments.run_store import Length, Results, Workshop
from pathaware.methods import METHODS

ROOT = Path(__file__).parents[3]


def test_every_method_has_a_row():
    goal = method_table("cifar-fs", lambda data: True)
    assert [line.key for line in goal.lines] == list(METHODS)
    printed = {line.key: place.printed for line in goal.lines for place in line.places.values()}
    assert printed["maml"] == "71.5 ± 1.9"


def test_timed_runs_get_the_same_seconds():
    fast, slow = Pace(besides=2, each=0.1), Pace(besides=10, each=0.5)
    assert fitting([fast, slow], [60_000, 60_000], 12 + 200, timed=True) == [1000, 200]
    with pytest.raises(UsageError, match="--budget: not enough"):
        fitting([fast, slow], [60_000, 60_000], 12.5, timed=True)


def test_the_time_of_what_is_done_is_not_given_to_the_others(tmp_path, monkeypatch):
    """Else the rows trained after a stop would have had longer."""
    shop, trials = Workshop(tmp_path), [trial("glyphs", name) for name in ("maml", "anil", "pamela")]
    monkeypatch.setattr(shop, "pace", lambda each: Pace(0, 1))
    length = Length(budget=300, timed=True)
    assert {order.iterations for order in shop.orders(trials, length)} == {100}
    monkeypatch.setattr(shop, "_begun", lambda each, results: 70 if each is trials[0] else None)
    assert [order.iterations for order in shop.orders(trials, length)] == [70, 100, 100]
    assert shop.orders([], length) == []  # where the data set is not imported


def test_methods_are_trained_and_ranked(reproduce, tmp_path):
    tiny = ("--tasks", "3", "--set", "training.tasks=2", "--set", "problem.width=4")
    chosen = ("--only", "prototypical", "--only", "anil", "--data", "glyphs", "--iterations", "2")
    code, shown, told = reproduce("methods", *chosen, *tiny, out=tmp_path)
    assert code == 0
    assert "methods: 2 runs to train" in told
    rows = [line for line in shown.splitlines() if line.startswith(("| prototypical", "| anil"))]
    values = [float(row.split("|")[5].split("±")[0]) for row in rows]
    assert values == sorted(values, reverse=True)
    names = [path.stem for path in (tmp_path / "results").glob("*.json")]
    assert sorted(names) == ["methods-glyphs-anil-2-seed0", "methods-glyphs-prototypical-2-seed0"]
    assert len(Results.read(tmp_path / "results", ["methods-glyphs-anil"]).found) == 1


@pytest.mark.parametrize("data", ["glyphs", "cifar-fs"])
def test_there_is_a_result_of_every_method_and_all_have_learned(data):
    results = Results.read(ROOT / "results", [trial(data, name).name for name in METHODS])
    for name in METHODS:
        (found,) = results.of(trial(data, name))
        before, *_, after = found.record["result"]["accuracy_per_step"]
        assert after > before + 0.1, name
