"""The table of docs/own-data.md: what another number of classes costs, from the records in `results/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pathaware.report.tables.markdown import pipe_table
from pathaware.report.tables.model import NOTHING, Row, Table

SETS = {"glyphs": "glyphs", "cifar-fs": "CIFAR-FS"}
KINDS = ("five, by the rule", "same rates", "trained for it")


def own_data_page(folder: Path) -> dict[str, str]:
    header = ("", "classes", "a run of 5, by the rule", "with rates as they were", "a run of that number")
    rows = []
    for name, label in SETS.items():
        record = json.loads((folder / f"ways-{name}.json").read_text(encoding="utf-8"))
        found = ((row, [_shown(row.get(kind)) for kind in KINDS]) for row in record["rows"])
        rows += [Row((label, str(row["classes"]), *numbers)) for row, numbers in found]
    return {"ways": pipe_table(Table("", header, rows))}


def _shown(found: dict[str, Any] | None) -> str:
    if found is None:
        return NOTHING
    return f"{100 * found['accuracy']:.1f} ± {100 * found['accuracy_ci95']:.1f}"
