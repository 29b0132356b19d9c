"""Presets: their names and configurations."""

from __future__ import annotations

import dataclasses
import hashlib
import re

import pytest

from pathaware import UsageError
from pathaware.cli import main
from pathaware.training.config import Config
from pathaware.training.meta_training import build
from pathaware.training.presets import all_presets, load_preset, presets
from pathaware.training.pretrained_classifier import Pretraining
from pathaware.training.supervised import default_folder

DIGESTS = {
    "glyphs": "375dd196b8c88f0f",
    "shipped-glyphs": "65cffab7d76d02fb",
    "shipped-sine": "ffc6f84f0d0caa67",
    "table1-miniimagenet-fomaml-1shot": "e596bf12564ea9d1",
    "table1-miniimagenet-fomaml-5shot": "2d641f27660c5894",
    "table1-miniimagenet-maml-1shot": "77105ee9c1209aaf",
    "table1-miniimagenet-maml-5shot": "75f36e982ca30465",
    "table1-miniimagenet-meta-sgd-1shot": "468a2f244e09146b",
    "table1-miniimagenet-meta-sgd-5shot": "167c7ac258f6c0ed",
    "table1-miniimagenet-pamela-1shot": "578ad1ebd9651a94",
    "table1-miniimagenet-pamela-5shot": "0dcdf1529c8ca286",
    "table1-miniimagenet-reptile-1shot": "901d421c7ebe1f5f",
    "table1-miniimagenet-reptile-5shot": "4eb2305c851a0669",
    "table2-cifar-fs-maml-1shot": "1f0413c837e10b5e",
    "table2-cifar-fs-maml-5shot": "819b8a0aff236423",
    "table2-cifar-fs-meta-sgd-1shot": "fbfa34436af547e1",
    "table2-cifar-fs-meta-sgd-5shot": "1b461963d979ba41",
    "table2-cifar-fs-pamela-1shot": "ab26c1d6ad8bf6d3",
    "table2-cifar-fs-pamela-5shot": "ad1f4ad4499d994d",
    "table2-tieredimagenet-maml-1shot": "2ac5d4c932267cfd",
    "table2-tieredimagenet-maml-5shot": "21cdf9dea4e68293",
    "table2-tieredimagenet-meta-sgd-1shot": "5a47a3aa42bf4700",
    "table2-tieredimagenet-meta-sgd-5shot": "28254e5de1027009",
    "table2-tieredimagenet-pamela-1shot": "e4072ab9cb3244ef",
    "table2-tieredimagenet-pamela-5shot": "5cc7b5c75249986e",
}
"""SHA-256 of the configuration as TOML, from when each preset was a file of its own. Since then only the
presets of tieredImageNet have changed: they no longer augment."""


LATER = (
    *("labels = true", "affine = 0.0", "grey = 0.0", "drop = 0.0", 'widths = ""', "cutmix = 0.0"),
    *(
        "mirror_support = false",
        'statistics = "batch"',
        'start = ""',
        "rule_rate = 0.0",
        "warmup = 0",
        "head_rate = 0.0",
        'head = "learned"',
        "dimensions = 64",
    ),
    *("average = 0.0", "evaluate_average = false", "distil = 0.0", "temperature = 4.0", 'teacher = ""'),
    *('weights = ""', 'adapt = "all"', "size = 0", 'normalisation = "auto"', "varying = false"),
    *(
        'meta_split = "train"',
        "teach = 0.3",
        "classify = 0.0",
        "classify_end = 0.0",
        "dropout = 0.0",
        "snapshots = 0",
    ),
    *("q_start = 1.0", "p_start = 0.0"),
)
"""Settings that were added since then, at their defaults."""
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
    text = Config.from_dict(tables).to_toml()
    for line in LATER:  # with these values they change nothing
        text = text.replace(f"{line}\n", "")
    text = re.sub("rate = 1.0\nq_start = (.*)\n", r"rate = \1\n", text)  # Q learned directly had one rate
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGESTS[name]


def test_there_is_a_preset_for_every_row_that_our_methods_have_in_tables_1_and_2():
    rows = [name for name in presets() if name.startswith("table") and name not in WAVES]
    assert len(rows) == 22
    for name in rows:
        built = Config.from_dict(load_preset(name))
        table, shots = name.split("-")[0], int(name[-5])
        assert built.problem.shots == shots
        assert name == f"{table}-{built.problem.data}-{built.method}-{shots}shot"


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


def test_images_are_augmented_where_the_paper_does_it():
    for name in presets():
        if name.startswith("table") and name not in WAVES:
            problem = Config.from_dict(load_preset(name)).problem
            assert problem.augment == (problem.data != "tieredimagenet"), name


def test_an_unknown_preset_is_refused_with_close_ones():
    with pytest.raises(UsageError, match=r"preset: 'nosuch' must be a TOML file .* --list` prints$"):
        load_preset("nosuch")
    with pytest.raises(UsageError, match=r"did you mean .* Also close: ") as refused:
        load_preset("table2-cifar-fs-pamela-5-strict")
    assert "table2-cifar-fs-pamela-5shot-strict" in str(refused.value)
    assert len(str(refused.value)) < 300


def test_all_presets_include_the_strict_ones_and_can_be_loaded(capsys):
    with pytest.raises(SystemExit) as left:
        main(["train", "preset", "--list"])
    assert not left.value.code
    listed = capsys.readouterr().out.split()
    assert listed == all_presets()
    assert set(presets()) < set(listed)
    assert "table3-sine-k10-maml-strict" in listed
    for name in set(listed) - set(presets()):
        Config.from_dict(load_preset(name))


def test_the_preset_of_glyphs_can_be_trained_by_its_name(tmp_path, capsys):
    """It is the example of `train preset --help`."""
    with pytest.raises(SystemExit) as left:
        main(["train", "preset", "glyphs", "--iterations", "0", "--out", str(tmp_path / "run")])
    assert left.value.code == 2
    assert "iterations: 0 is not allowed" in capsys.readouterr().err
