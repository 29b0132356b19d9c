"""The tables of docs/online.md, from the records of races in `results/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pathaware.online.stream import STREAMS
from pathaware.online.table import race_table
from pathaware.report.tables.markdown import pipe_table

READINGS = {
    "first": 'no Hessians, `order="first"`',
    "alone": "the newest item alone, `replay=1`",
}
"""Other races of the online learner on waves, by the end of their file's name."""


def online_page(folder: Path) -> dict[str, str]:
    """A table for each stream by its name, and one of other readings."""
    blocks = {name: pipe_table(race_table(_record(folder, name))) for name in STREAMS}
    compared = _record(folder, "sine")
    found = {name: compared["contestants"][name] for name in ("online", "literal")}
    for name, label in READINGS.items():
        found[name] = {**_record(folder, f"sine-{name}")["contestants"]["online"], "label": label}
    blocks["readings"] = pipe_table(race_table({**compared, "contestants": found}))
    return blocks


def _record(folder: Path, name: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / f"online-{name}.json").read_text(encoding="utf-8"))
    return record
