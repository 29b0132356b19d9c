"""A sweep's file: what it means, and that all of it is checked before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pathaware.sweep.plan import Range, SweepPlan, folder_name
from tests.calling import refused

BASE = '[problem]\nname = "sine"\n[method]\nname = "maml"\n[training]\niterations = 5\n'


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


def plan(folder: Path, text: str) -> SweepPlan:
    path = folder / "sweep.toml"
    path.write_text(text, encoding="utf-8")
    return SweepPlan.read(path)


def test_lists_are_a_full_grid_named_by_what_varies(tmp_path):
    found = plan(tmp_path, BASE + '[sweep]\n"method.name" = ["maml", "pamela"]\ntraining.seed = [0, 7]\n')
    runs = list(found.grid())
    assert [run.name for run in runs] == [
        "method=maml,seed=0",
        "method=maml,seed=7",
        "method=pamela,seed=0",
        "method=pamela,seed=7",
    ]
    assert [(r.config.method, r.config.training.seed) for r in runs][2:] == [("pamela", 0), ("pamela", 7)]
    assert all(run.config.training.iterations == 5 for run in runs)


def test_a_preset_is_a_base_over_which_tables_are_laid(tmp_path):
    text = 'preset = "glyphs"\n[problem]\nwidth = 8\n[method]\nname = "maml"\n[sweep]\ntraining.seed = [0]\n'
    config = next(plan(tmp_path, text).grid()).config
    assert (config.problem.data, config.problem.width, config.training.iterations) == ("glyphs", 8, 500)


def test_a_setting_can_be_off_in_a_list(tmp_path):
    text = BASE.replace("maml", "pamela") + '[sweep]\nmethod.skip = ["none", 2]\n'
    runs = list(plan(tmp_path, text).grid())
    assert [run.config.method_settings["skip"] for run in runs] == [None, 2]
    assert [run.name for run in runs] == ["skip=none", "skip=2"]


def test_ranges_are_for_a_search(tmp_path):
    search = 'search = "optuna"\ntrials = 4\n"training.rate" = { low = 1e-4, high = 1e-2, log = true }\n'
    found = plan(tmp_path, BASE + "[sweep]\n" + search)
    assert found.trials == 4
    assert found.axes == {"training.rate": Range(1e-4, 1e-2, True)}


def test_settings_that_share_their_last_word_are_told_apart():
    assert folder_name({"method.rate": 0.1, "training.rate": 0.2}) == "method.rate=0.1,training.rate=0.2"


def test_names_are_different_and_safe_whatever_values_hold():
    values = ["a/b", "a_b", "..", "a,seed=1", "x" * 300, "x" * 301, "a\nb"]
    names = {folder_name({"problem.data": value}) for value in values}
    assert len(names) == len(values)
    assert all("/" not in name and len(name) < 230 and name.isprintable() for name in names)


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ('[sweep]\n"training.seed" = [0, -1]', "seed=-1: seed: -1 is not allowed; must be at least 0"),
        ('[sweep]\n"training.seed" = [0, 1, 0]', "[sweep] training.seed: 0 is given twice"),
        ('[sweep]\n"training.seed" = 3', "[sweep] training.seed: 3 is not allowed; must be a list of values"),
        ('[sweep]\n"training.sede" = [3]', "sede: [training] has no such setting"),
        ("[sweep]\nseed = [3]", "[sweep] seed: no such setting"),
        ("[sweep]", "[sweep]: it must list at least one setting"),
        ("", "[sweep]: it must list at least one setting"),
        (
            '[sweep]\n"method.name" = ["maml", "pamela"]\n"method.skip" = [1]',
            "skip: maml has no such setting",
        ),
        ("[sweep]\ntraining.rate = { low = 1, high = 2 }", 'a range needs search = "optuna"'),
        ('[sweep]\nsearch = "optuna"\ntraining.clip = [1]', "search and trials go together"),
        (
            '[sweep]\nsearch = "luck"\ntrials = 2\ntraining.clip = [1]',
            "search: 'luck' is not allowed; must be optuna",
        ),
        ('[sweep]\nsearch = "optuna"\ntrials = 2\ntraining.seed = [1]', "a search uses one seed"),
        (
            '[sweep]\nsearch = "optuna"\ntrials = 2\ntraining.rate = { low = 0, high = 1, log = true }',
            "low must be above 0",
        ),
        ('[sweep]\nproblem.name = ["sine", "classification"]', "errors and accuracies cannot share a table"),
        (f"[sweep]\ntraining.seed = {list(range(200))}\ntraining.save = {list(range(51))}", "10,200 runs"),
        ("[swep]\na = 1", "[swep]: no such table"),
    ],
)
def test_a_bad_file_is_one_line_exit_code_two_and_nothing_left(tmp_path, sweep, message):
    path = tmp_path / "sweep.toml"
    path.write_text(BASE + sweep, encoding="utf-8")
    told = refused("sweep", path, "--out", tmp_path / "out")
    assert told.startswith("error: FILE: ")
    assert message in told
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "train"], "--split: 'train' must be one of val, test"),
        (["--devices", "gpu1"], "--devices: 'gpu1' is not of the form cuda:N"),
        (["--devices", "cuda:999"], "--devices: cuda:999 does not exist"),
        (["--workers", "0"], "--workers"),
        (["--workers", "9223372036854775807"], "is not allowed; must be at most 10,000"),
        (["--backend", "threads"], "--backend: 'threads' must be one of loky, dask, ray"),
        (["--cluster", "tcp://127.0.0.1:9"], "--cluster: a cluster needs the backend dask or ray"),
        (["--backend", "dask"], "--cluster: dask needs the address of a scheduler"),
        (["--backend", "dask", "--devices", "cuda:0"], "--devices: with dask the workers"),
    ],
)
def test_a_bad_option_is_one_line_too(tmp_path, arguments, message):
    path = tmp_path / "sweep.toml"
    path.write_text(BASE + "[sweep]\ntraining.seed = [0]\n", encoding="utf-8")
    assert message in refused("sweep", path, "--out", tmp_path / "out", *arguments)
    assert list(tmp_path.iterdir()) == [path]
