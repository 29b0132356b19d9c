"""Presets: their names and configurations."""

from __future__ import annotations

import dataclasses
import hashlib
import json

import pytest

from pathaware import UsageError
from pathaware.training.config import Config
from pathaware.training.meta_training import build
from pathaware.training.presets import all_presets, load_preset, presets
from pathaware.training.settings import Pretraining
from pathaware.training.supervised import default_folder
from tests.calling import done, refused

DIGESTS = {
    "glyphs": "5e05efe126d3df98",
    "shipped-glyphs": "10c94023e2fe397d",
    "shipped-sine": "223a8e67013fefac",
    "table1-miniimagenet-fomaml-1shot": "8610c0d83f718b92",
    "table1-miniimagenet-fomaml-5shot": "2d0bf673c72ea8e8",
    "table1-miniimagenet-maml-1shot": "5e650b1fa3745456",
    "table1-miniimagenet-maml-5shot": "8bafaf2224bcd10b",
    "table1-miniimagenet-meta-sgd-1shot": "375ee56c37c4db19",
    "table1-miniimagenet-meta-sgd-5shot": "64cd66e8f856b7cd",
    "table1-miniimagenet-pamela-1shot": "ec76a045047d2388",
    "table1-miniimagenet-pamela-5shot": "3e4573764ea56921",
    "table1-miniimagenet-reptile-1shot": "06a248f05291fc2e",
    "table1-miniimagenet-reptile-5shot": "3e7e41c5d1a33a4f",
    "table2-cifar-fs-maml-1shot": "569e3887c696a941",
    "table2-cifar-fs-maml-5shot": "bcdf2fa8dfc96bb3",
    "table2-cifar-fs-meta-sgd-1shot": "5924536751913bba",
    "table2-cifar-fs-meta-sgd-5shot": "69bbaf545740642d",
    "table2-cifar-fs-pamela-1shot": "f3d2ff22661bd925",
    "table2-cifar-fs-pamela-5shot": "090534b80d1672e0",
    "table2-tieredimagenet-maml-1shot": "f2aad94405da9975",
    "table2-tieredimagenet-maml-5shot": "60964b3f5599c138",
    "table2-tieredimagenet-meta-sgd-1shot": "1d84e4804175ac03",
    "table2-tieredimagenet-meta-sgd-5shot": "972badf95b7dc981",
    "table2-tieredimagenet-pamela-1shot": "2d46adf5920d8e56",
    "table2-tieredimagenet-pamela-5shot": "c40d962b30100959",
}
"""SHA-256 of all settings. Leave out those that are added later with a default that changes nothing."""
SINE_METHODS = ("maml", "meta-sgd", "mt-net", "pamela")
WAVES = [f"table3-sine-k{shots}-{method}" for shots in (5, 10, 20) for method in SINE_METHODS]


RECIPES = [f"recipe-{data}-{shots}shot" for data in ("cifar-fs", "miniimagenet") for shots in (1, 5)]
SINE_RECIPES = [f"recipe-sine-k{points}" for points in (5, 10, 20)]


def test_the_names_of_presets_do_not_change():
    assert presets() == sorted([*DIGESTS, *WAVES, *RECIPES, *SINE_RECIPES])


@pytest.mark.parametrize("name", SINE_RECIPES)
def test_a_recipe_for_sine_waves_remembers_every_point_of_the_path(name):
    built = Config.from_dict(load_preset(name))
    assert name == f"recipe-sine-k{built.problem.shots}"
    rule = build(built).rule
    assert rule.skips == [1, 2, 3, 4]
    assert rule.p.shape[1] == len(rule.layout)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_starts_where_pretraining_writes_and_has_all_its_parts(name):
    built = Config.from_dict(load_preset(name))
    problem, training = built.problem, built.training
    assert name == f"recipe-{problem.data}-{problem.shots}shot"
    assert training.start == str(default_folder(Pretraining(data=problem.data)))
    assert built.has_recipe
    assert problem.mirror_support == (problem.shots == 1)
    for method in ("maml", "meta-sgd"):  # the same recipe for others
        tables = load_preset(name)
        tables["method"] = {"name": method}
        assert Config.from_dict(tables).has_recipe


@pytest.mark.parametrize("name", DIGESTS)
def test_the_configuration_of_a_preset_does_not_change(name):
    tables = load_preset(name)
    tables["method"] = {"name": "pamela", **tables["method"]}  # `glyphs` is for any method
    lines = [
        f"{table}.{key} = {json.dumps(value)}"
        for table, values in Config.from_dict(tables).to_dict().items()
        for key, value in values.items()
    ]
    text = "\n".join(sorted(lines))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize("name", [name for name in presets() if name.startswith("table")])
def test_a_strict_row_leaves_out_what_the_paper_does_not_mention_and_nothing_else(name):
    plain, strict = (Config.from_dict(load_preset(each)) for each in (name, f"{name}-strict"))
    training = strict.training
    assert (training.schedule, training.clip, training.guard) == ("constant", 0.0, False)
    own = {"schedule": "cosine", "clip": plain.training.clip, "guard": True}
    if name in WAVES:
        assert (training.tasks, training.rate, training.iterations) == (4, 1e-3, 60_000)
        own |= {key: getattr(plain.training, key) for key in ("tasks", "rate", "iterations")}
    printed = {"rate": 0.01, "q_start": 1.0} if plain.method == "pamela" else {}
    settings = {**plain.method_settings, **printed}
    assert strict.with_training(**own) == dataclasses.replace(plain, method_settings=settings)


def test_waves_are_rows_of_table_3():
    for name in WAVES:
        built = Config.from_dict(load_preset(name))
        assert name == f"table3-sine-k{built.problem.shots}-{built.method}"
        assert built.training.iterations == 40_000


def test_an_unknown_preset_is_refused_with_close_ones():
    with pytest.raises(UsageError, match=r"preset: 'nosuch' must be a TOML file .* --list` prints$"):
        load_preset("nosuch")
    with pytest.raises(UsageError, match=r"did you mean .* Also close: ") as refused:
        load_preset("table2-cifar-fs-pamela-5-strict")
    assert "table2-cifar-fs-pamela-5shot-strict" in str(refused.value)
    assert len(str(refused.value)) < 300


def test_all_presets_include_the_strict_ones_and_can_be_loaded():
    listed = done("train", "preset", "--list").split()
    assert listed == all_presets()
    assert set(presets()) < set(listed)
    assert "table3-sine-k10-maml-strict" in listed
    for name in set(listed) - set(presets()):
        Config.from_dict(load_preset(name))


def test_the_preset_of_glyphs_can_be_trained_by_its_name(tmp_path):
    """It is the example of `train preset --help`."""
    error = refused("train", "preset", "glyphs", "--iterations", "0", "--out", tmp_path / "run")
    assert "iterations: 0 is not allowed" in error
