"""Settings: defaults, round trips through TOML, and errors that name the setting."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass

import pytest

from pathaware import UsageError
from pathaware.core.schema import read_table
from pathaware.core.settings import coerce
from pathaware.methods import METHODS
from pathaware.training.config import Config, config_schema, parse_setting


def config(**tables) -> Config:
    return Config.from_dict({"problem": {"name": "sine"}, "method": {"name": "pamela"}, **tables})


def test_defaults_are_the_papers():
    images = config(problem={"name": "classification", "data": "cifar-fs"})
    assert (images.problem.ways, images.problem.shots, images.problem.queries) == (5, 5, 15)
    assert (
        images.method_settings["steps"],
        images.method_settings["skip"],
        images.method_settings["rate"],
    ) == (5, 2, 0.01)
    assert (images.training.tasks, images.training.iterations, images.training.rate) == (4, 60_000, 1e-3)
    assert config().problem.queries == 10


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("problem", ["sine", "classification"])
def test_a_configuration_survives_its_toml_file(method, problem):
    if problem == "sine" and not METHODS[method].regression:
        pytest.skip("it only tells classes apart")
    before = config(problem={"name": problem}, method={"name": method}, training={"seed": 7})
    assert Config.from_toml(before.to_toml()) == before


def test_a_method_that_tells_classes_apart_is_no_method_for_waves():
    with pytest.raises(UsageError, match="method: prototypical is for classification; sine has no classes"):
        config(problem={"name": "sine"}, method={"name": "prototypical"})


def test_a_setting_that_is_off_survives_too():
    before = config(method={"name": "pamela", "skip": None})
    assert Config.from_toml(before.to_toml()).method_settings["skip"] is None


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"problem": {"name": "sine", "shots": 0}}, "shots: 0 is not allowed; must be at least 1"),
        ({"problem": {"name": "cosine"}}, "problem: 'cosine' must be one of sine, classification"),
        ({"problem": {"name": "sine", "waves": 3}}, r"waves: \[problem\] has no such .* it has .*points"),
        ({"problem": {"name": "sine", "point": 3}}, r"point: .* no such setting; did you mean points\?$"),
        ({"problem": {}}, r"\[problem\]: name is missing"),
        ({"method": {"name": "mamel"}}, "method: 'mamel' must be one of maml, .*pamela"),
        ({"method": {"name": "maml", "skip": 2}}, "skip: maml has no such setting; it has steps, rate"),
        ({"method": {"name": "pamela", "steps": "five"}}, "steps: 'five' is not allowed; must be an integer"),
        (
            {"method": {"name": "pamela", "q": "both"}},
            "q: 'both' is not allowed; must be one of per-step, shared",
        ),
        ({"training": {"rate": 0.0}}, "rate: 0.0 is not allowed; must be a positive number"),
        ({"training": {"histograms": -1}}, "histograms: -1 is not allowed; must be at least 0"),
        ({"training": {"iterations": True}}, "iterations: True is not allowed; must be an integer"),
        ({"training": {"clip": float("nan")}}, "clip: nan is not allowed; must be a finite number"),
        ({"extra": {}}, r"\[extra\]: no such table"),
    ],
)
def test_what_cannot_be_used_is_named(tables, message):
    with pytest.raises(UsageError, match=message):
        config(**tables)


def test_settings_are_typed_as_their_owner_declares():
    assert coerce("rate", 1, float) == 1.0
    assert coerce("skip", None, int | None) is None
    with pytest.raises(UsageError, match="skip: 'two' is not allowed; must be an integer or none"):
        coerce("skip", "two", int | None)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("method.skip=none", ("method", "skip", None)),
        ("training.clip=0.5", ("training", "clip", 0.5)),
        ("method.q=shared", ("method", "q", "shared")),
        ("training.guard=false", ("training", "guard", False)),
    ],
)
def test_settings_on_the_command_line(text, parsed):
    assert parse_setting(text) == parsed


@pytest.mark.parametrize("text", ["clip=1", "training.clip", "outer.clip=1", "training.=1"])
def test_a_setting_of_another_form_is_refused(text):
    with pytest.raises(UsageError, match=r"set: .* is not of the form"):
        parse_setting(text)


EARLIER = {name: method.earlier({}) for name, method in METHODS.items() if method.earlier({})}


@pytest.mark.parametrize("name", EARLIER)
def test_a_run_of_an_earlier_version_keeps_the_settings_it_did_not_have(name):
    earlier, settings = EARLIER[name], METHODS[name].settings()
    assert set(earlier) <= set(settings)
    assert all(settings[key] != value for key, value in earlier.items())
    tables = config(method={"name": name}).to_dict()
    assert Config.of_run(tables).to_dict() == tables, "a new run states all settings"
    tables["method"] = {key: value for key, value in tables["method"].items() if key not in earlier}
    assert {key: Config.of_run(tables).method_settings[key] for key in earlier} == earlier
    assert {key: Config.from_dict(tables).method_settings[key] for key in earlier} != earlier


def test_a_pamela_of_before_its_rate_multiplied_q_learns_q_directly_from_that_rate():
    tables = config(method={"name": "pamela"}).to_dict()
    tables["method"] = {"name": "pamela", "steps": 3, "rate": 0.1}
    settings = Config.of_run(tables).method_settings
    assert (settings["rate"], settings["q_start"], settings["steps"]) == (1.0, 0.1, 3)


def test_defaults_of_a_method_on_a_problem_count_only_together():
    def pamela(**method):
        return config(method={"name": "pamela", **method}).method_settings

    assert (pamela()["rate"], pamela()["q_start"]) == (0.1, 0.1)
    assert (pamela(q_start=2.0)["rate"], pamela(q_start=2.0)["q_start"]) == (0.01, 2.0)
    assert (pamela(rate=0.2)["rate"], pamela(rate=0.2)["q_start"]) == (0.2, 1.0)


@dataclass(frozen=True)
class Nested:
    names: list[str]
    shares: dict[str, float]
    best: float | None = None
    parts: list[dict[str, int]] | None = None


def test_declared_schemas_check_values_inside_lists_and_tables():
    found = read_table("file", {"names": ["a"], "shares": {"a": 1}, "parts": [{"b": 2}]}, Nested)
    assert found == Nested(["a"], {"a": 1.0}, None, [{"b": 2}])
    assert isinstance(found.shares["a"], float)
    assert read_table("file", {"names": [], "shares": {}, "later": 3}, Nested, known_only=False) == Nested(
        [], {}
    )
    for values, message in (
        ({"names": []}, r"\[file\]: shares is missing"),
        ({"names": "a", "shares": {}}, "names: 'a' is not allowed; must be a list"),
        ({"names": [1], "shares": {}}, r"names\[0\]: 1 is not allowed; must be a string"),
        ({"names": [], "shares": {"a": "b"}}, r"shares\.a: 'b' is not allowed; must be a finite number"),
        ({"names": [], "shares": {}, "parts": [3]}, r"parts\[0\]: 3 is not allowed; must be a table"),
        ({"names": [], "shares": {}, "name": 3}, r"name: \[file\] has no such setting; did you mean names"),
    ):
        with pytest.raises(UsageError, match=message):
            read_table("file", values, Nested)


def test_the_json_schema_describes_every_setting_of_problems_and_trainings():
    tables = config_schema()["properties"]
    kinds = [tables["training"], tables["pretraining"], *tables["problem"]["anyOf"]]
    for kind in kinds:
        assert all("description" in each for name, each in kind["properties"].items() if name != "name")
    assert tables["training"]["properties"]["clip"] == {
        "type": "number", "default": 10.0, "description": "largest norm of the meta-gradient, 0 for no limit"
    }  # fmt: skip
    methods = {
        each["properties"]["name"].get("const"): each["properties"] for each in tables["method"]["anyOf"]
    }
    assert {*METHODS, None} == set(methods)
    assert methods["pamela"]["skip"]["anyOf"] == [{"type": "integer"}, {"const": "none"}]


def test_configurations_fit_their_schema():
    validator = pytest.importorskip("jsonschema").Draft202012Validator(config_schema())
    for problem in ("sine", "classification"):
        for method in METHODS if problem == "classification" else ("pamela", "maml"):
            text = config(problem={"name": problem}, method={"name": method}).to_toml()
            validator.validate(tomllib.loads(text))
    assert not validator.is_valid({"training": {"clop": 1}})
