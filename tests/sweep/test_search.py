"""A search with Optuna, and the study that it keeps."""

from __future__ import annotations

import importlib.util

import pytest

from tests.calling import pathaware

FILE = """
[problem]
name = "sine"
points = 10

[method]
name = "maml"

[training]
iterations = 6
tasks = 2
validate = 2
validation_tasks = 2

[sweep]
search = "optuna"
trials = TRIALS
training.rate = { low = 1e-4, high = 1e-1, log = true }
method.steps = { low = 1, high = 2 }
training.clip = [1.0, 10.0]
"""


@pytest.fixture
def search(tmp_path):
    def run(trials: int, *arguments: str) -> tuple[int, str, str]:
        path = tmp_path / "search.toml"
        path.write_text(FILE.replace("TRIALS", str(trials)), encoding="utf-8")
        ended = pathaware("sweep", path, "--out", tmp_path / "out", "--tasks", "4", *arguments)
        return ended.code, ended.out, ended.err

    return run


@pytest.mark.skipif(importlib.util.find_spec("optuna") is not None, reason="Optuna is installed")
def test_without_optuna_a_search_says_how_to_get_it(search, tmp_path):
    code, _, told = search(2)
    assert (code, told.count("\n")) == (2, 1)
    assert "pip install optuna" in told
    assert not (tmp_path / "out").exists()


def test_a_search_is_resumed_and_shows_every_trial(search, tmp_path):
    pytest.importorskip("optuna")
    code, shown, told = search(2, "--workers", "2")
    assert code == 0, told
    assert shown.count("\n| ") == 4  # header, rule and two trials
    code, shown, told = search(3)
    assert code == 0, told
    assert shown.count("\n| ") == 5
    assert "trial0002: mse" in told
    assert "trial0001: mse" not in told
    rates = [line.split("|")[1].strip(" *") for line in shown.splitlines() if line.startswith("| ")][2:]
    assert len(set(rates)) == 3
    assert (tmp_path / "out/study.db").exists()


def test_a_run_that_optuna_prunes_is_stopped(search, monkeypatch):
    optuna = pytest.importorskip("optuna")
    monkeypatch.setattr(optuna.trial.Trial, "should_prune", lambda self: True)
    monkeypatch.setitem(globals(), "FILE", FILE.replace("iterations = 6", "iterations = 2000"))
    code, shown, told = search(1)
    assert code == 1, told  # nothing was found
    assert "trial0000: stopped early" in told
    assert "stopped early after 2 iterations" in shown


def test_a_search_is_evaluated_by_validation_only(search):
    code, _, told = search(2, "--split", "test")
    assert code == 2
    assert "must be val for a search" in told
