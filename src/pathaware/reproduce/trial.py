"""A training that a table or a figure needs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pathaware.training.config import Config

# What of the training settings decides the outcome. The others say how and where it is computed.
_DECISIVE = ("tasks", "rate", "schedule", "clip", "guard", "pretrain", "dtype")


@dataclass(frozen=True)
class Trial:
    """A configuration but for its seed and its length. `name` is for folders and files."""

    name: str
    tables: Mapping[str, Mapping[str, Any]]

    def config(self, seed: int = 0, iterations: int | None = None) -> Config:
        """Of one run; its length is the paper's unless told otherwise."""
        tables: dict[str, Any] = copy.deepcopy({k: dict(v) for k, v in self.tables.items()})
        training = tables.setdefault("training", {})
        training["seed"] = seed
        if iterations is not None:
            training["iterations"] = iterations
        return Config.from_dict(tables)

    def changed(self, settings: Mapping[str, Mapping[str, Any]]) -> Trial:
        """The same with other settings."""
        names = [*self.tables, *(table for table in settings if table not in self.tables)]
        return Trial(self.name, {n: {**self.tables.get(n, {}), **settings.get(n, {})} for n in names})


def signature(config: Config) -> str:
    """Equal for runs that differ in seed, length and machinery only."""
    problem: Any = config.problem
    settings = {k: v for k, v in asdict(problem).items() if k != "data_dir"}
    training = {name: getattr(config.training, name) for name in _DECISIVE}
    return repr(
        (config.problem.name, settings, config.method, sorted(config.rule.items(), key=str), training)
    )
