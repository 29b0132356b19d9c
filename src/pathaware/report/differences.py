"""The settings in which runs differ."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pathaware.report.looks import labels
from pathaware.report.tables.model import NOTHING, Table
from pathaware.training.run import Run


def differences(runs: Sequence[Run]) -> Table:
    """A row for each such setting; a dash where a method has no such setting."""
    settings = [
        {
            f"{table}.{key}": _shown(v)
            for table, values in run.config.to_dict().items()
            for key, v in values.items()
        }
        for run in runs
    ]
    names = dict.fromkeys(name for each in settings for name in each)
    lines = [[name, *(each.get(name, NOTHING) for each in settings)] for name in names]
    return Table.of(
        "Where they differ", ["setting", *labels(runs)], [line for line in lines if len(set(line[1:])) > 1]
    )


def _shown(value: object) -> str:
    """As the configuration file has it, without quotes."""
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)
