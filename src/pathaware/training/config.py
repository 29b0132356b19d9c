"""The configuration of a run: three tables of settings, validated when built and stored as TOML."""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathaware.core.errors import UsageError, did_you_mean
from pathaware.core.reading import read_file
from pathaware.core.schema import described, json_schema, read_table, table_schema
from pathaware.core.settings import coerce, short_repr, type_hints
from pathaware.methods import METHODS, Method, get_method
from pathaware.training.presets import SUGGESTED
from pathaware.training.problems import PROBLEMS, Problem
from pathaware.training.settings import Pretraining, table, to_toml
from pathaware.training.settings import Training as Training


def read_toml(text: str) -> dict[str, Any]:
    """Parse TOML. It has no null, so the text "none" stands for None."""
    try:
        tables: dict[str, Any] = _plain(tomllib.loads(text))
    except RecursionError:
        raise UsageError("nested too deeply to be read") from None
    except ValueError as error:
        raise UsageError(f"not valid TOML ({error})") from None
    return tables


def read_toml_file(field: str, path: Path) -> dict[str, Any]:
    """Read a TOML file; `field` is the argument that an error names."""
    try:
        return read_toml(read_file(path).decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror})", field=field) from None
    except ValueError as error:  # a path that no file can have, not UTF-8, or not TOML
        raise UsageError(f"{path}: {error}", field=field) from None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("an integer has more than 64 bits")
    if isinstance(value, (datetime.date, datetime.time)):
        raise ValueError(f"{value} is a date or a time, which no setting takes")
    return None if value == "none" else value


@dataclass(frozen=True)
class Config:
    """All settings of a run: problem, method with its settings, and training.

    Every value is checked; a setting that is not given has its default.

    >>> config = Config.from_dict(
    ...     {"problem": {"name": "sine"}, "method": {"name": "maml"}, "training": {"iterations": 100}}
    ... )
    >>> config.problem.shots, config.method_settings["steps"], config.training.tasks
    (10, 5, 25)
    >>> Config.from_toml(config.to_toml()) == config
    True
    """

    problem: Problem
    method: str
    method_settings: Mapping[str, Any]
    training: Training

    def __post_init__(self) -> None:
        chosen = get_method(self.method)
        if self.problem.regression and not chosen.regression:
            raise UsageError(
                f"method: {self.method} is for classification; {self.problem.name} has no classes"
            )
        self._check_pretrained(chosen)
        object.__setattr__(self, "method_settings", chosen.complete(self.method_settings))
        if chosen.problem:
            object.__setattr__(self, "problem", dataclasses.replace(self.problem, **chosen.problem))

    def _check_pretrained(self, chosen: Method) -> None:
        """Refuse combinations that have no meaning with a pretrained network or with varying tasks."""
        problem: Any = self.problem
        if getattr(problem, "varying", False) and "any shots" not in chosen.adapter.allows:
            raise UsageError(f"varying: {self.method} needs tasks of equal sizes; proto-pamela does not")
        if getattr(problem, "statistics", "batch") == "running" and not self.training.start:
            raise UsageError("statistics: running ones come from a pretraining; set training.start")

    @property
    def has_recipe(self) -> bool:
        """True if training has more than the query loss of the method, see `pathaware.training.recipe`."""
        training, problem = self.training, dataclasses.asdict(self.problem)
        mixed = bool(problem.get("cutmix"))
        return mixed or bool(training.average or training.teacher or training.classify or training.dropout)

    def with_training(self, **training: Any) -> Config:
        """A copy with other training settings."""
        return dataclasses.replace(self, training=dataclasses.replace(self.training, **training))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """All settings as the tables `problem`, `method` and `training`."""
        return {
            "problem": {"name": self.problem.name, **table(self.problem)},
            "method": {"name": self.method, **self.method_settings},
            "training": table(self.training),
        }

    @classmethod
    def from_dict(cls, tables: Mapping[str, Any]) -> Config:
        """Build a configuration from tables: `problem` and `method` with a `name`, and `training`."""
        expected = ("problem", "method", "training")
        for name, values in tables.items():
            if name not in expected:
                hint = did_you_mean(name, expected)
                raise UsageError(f"[{name}]: no such table; must be one of {', '.join(expected)}{hint}")
            if not isinstance(values, Mapping):
                raise UsageError(f"{name}: {short_repr(values)} is not allowed; must be a table [{name}]")
        for name in ("problem", "method"):
            if "name" not in tables.get(name, {}):
                raise UsageError(f"[{name}]: name is missing")
        problem, method = dict(tables["problem"]), dict(tables["method"])
        kind = coerce("problem", problem.pop("name"), str)
        if kind not in PROBLEMS:
            hint = did_you_mean(kind, PROBLEMS)
            raise UsageError(f"problem: {kind!r} must be one of {', '.join(PROBLEMS)}{hint}")
        name = coerce("method", method.pop("name"), str)
        suggested = SUGGESTED.get(kind, {}).get(name, {})
        if not suggested.keys() & method.keys():  # they belong together
            method = {**suggested, **method}
        for setting, needed in get_method(name).problem.items():
            if problem.get(setting, needed) != needed:
                given, only = json.dumps(problem[setting]), json.dumps(needed)
                raise UsageError(f"{setting}: {given} is not allowed with {name}; {only}")
        training = {**PROBLEMS[kind].training_defaults, **tables.get("training", {})}
        if training.pop("pretrain", 0) != 0:  # a setting of versions up to 0.2.0
            raise UsageError(
                "training.pretrain: no longer a setting; run `pathaware pretrain` and name its folder in "
                "training.start"
            )
        return cls(
            read_table("problem", problem, PROBLEMS[kind]),
            name,
            method,
            read_table("training", training, Training),
        )

    @classmethod
    def of_run(cls, tables: Mapping[str, Any]) -> Config:
        """The stored configuration of a run; newer settings get the values that keep its behaviour."""
        training = tables.get("training")
        if isinstance(training, Mapping):  # what was pretrained is in the states and the checkpoint
            tables = {**tables, "training": {k: v for k, v in training.items() if k != "pretrain"}}
        method = tables.get("method")
        if isinstance(method, Mapping) and isinstance(method.get("name"), str):
            tables = {**tables, "method": get_method(method["name"]).earlier(method)}
        return cls.from_dict(tables)

    def to_toml(self) -> str:
        """The text of `config.toml`."""
        return to_toml(self.to_dict())

    @classmethod
    def from_toml(cls, text: str) -> Config:
        """Read a configuration from the text of a TOML file."""
        return cls.from_dict(read_toml(text))


def config_schema() -> dict[str, Any]:
    """The JSON schema of `config.toml` and of presets, by which editors complete and check them."""
    own = {"type": "object", "properties": {"name": {"type": "string", "pattern": ":"}}, "required": ["name"]}
    methods = [*(_named(name, _method_schema(method)) for name, method in METHODS.items()), own]
    tables = {
        "problem": {"anyOf": [_named(name, json_schema(kind)) for name, kind in PROBLEMS.items()]},
        "method": {"anyOf": methods},
        "training": json_schema(Training),
        "pretraining": json_schema(Pretraining),
    }
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Configuration of pathaware"}
    return {**about, "type": "object", "properties": tables, "additionalProperties": False}


def _method_schema(method: Method) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    for owner in (method.network, method.adapter, method.meta_gradient):
        hints |= type_hints(owner.__init__ if inspect.isclass(owner) else owner)
    settings = {name: (hints[name], default) for name, default in method.settings().items()}
    return table_schema(settings, described(method.adapter))


def _named(name: str, table: dict[str, Any]) -> dict[str, Any]:
    """The schema of a table whose setting `name` must have this value."""
    return {**table, "properties": {"name": {"const": name}, **table["properties"]}, "required": ["name"]}


def differences(there: Config, here: Config) -> str:
    """Describe how two configurations differ: `training.rate 0.001, here 0.002; …`; empty if equal."""
    old, new = (
        {f"{name}.{key}": v for name, values in config.to_dict().items() for key, v in values.items()}
        for config in (there, here)
    )
    return setting_differences(old, new)


def setting_differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Describe how settings differ, by name; empty if they are equal."""
    keys = dict.fromkeys([*there, *here])
    return "; ".join(
        f"{key} {there.get(key)}, here {here.get(key)}" for key in keys if there.get(key) != here.get(key)
    )


def parse_setting(text: str) -> tuple[str, str, Any]:
    """`"method.skip=none"` → `("method", "skip", None)`."""
    name, equals, value = text.partition("=")
    place, dot, key = name.partition(".")
    tables = ("problem", "method", "training")
    if not (equals and dot and key) or place not in tables:
        hint = did_you_mean(name, [f"{each}.{key or name}" for each in tables])
        if key and place in tables:
            hint = f"; write {name}=VALUE"
        raise UsageError(
            f"{text!r} is not of the form problem.X=…, method.X=… or training.X=…{hint}", field="set"
        )
    return place, key, parse_value(value)


def parse_value(text: str) -> Any:
    """Parse a value from the command line: `none`, `true`, `5`, `0.1` or a word."""
    if text == "none":
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # the latter from deeply nested brackets
        return text


def format_value(value: Any) -> str:
    """Format a value as in a configuration file, without quotes: the inverse of `parse_value`."""
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
