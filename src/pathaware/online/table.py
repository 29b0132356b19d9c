"""A race as a table: how well data sets are learned at the start and the end of the stream, at what cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pathaware.online.race import early_error, interval, late_error
from pathaware.report.tables.model import Row, Table

SHOWN = {"rate": "α₁", "meta_rate": "α₂", "pull": "λ"}


def race_table(record: Mapping[str, Any]) -> Table:
    header = (
        "contestant",
        f"{record['metric']}, first tenth",
        f"{record['metric']}, last quarter",
        "gradients a data set",
        "chosen",
    )
    rows = []
    for name, found in record["contestants"].items():
        cells = (
            found["label"],
            shown([early_error(each) for each in found["errors"]]),
            shown([late_error(each) for each in found["errors"]]),
            f"{found['gradients_per_data_set']:.0f}",
            chosen(found),
        )
        rows.append(Row(cells, emphasis=name == "online"))
    return Table("", header, rows)


def shown(values: Sequence[float]) -> str:
    mean, half = interval(values)
    return f"{mean:.3f}" if math.isnan(half) else f"{mean:.3f} ± {half:.3f}"


def chosen(found: Mapping[str, Any]) -> str:
    """The rates, as the paper writes them; and how θ descends, where that was a choice."""
    settings = found["settings"]
    told = [f"{sign} {settings[key]:g}" for key, sign in SHOWN.items() if key in settings]
    if len({each["settings"].get("descent") for each in found["tried"]}) > 1:
        told.append(settings["descent"])
    return ", ".join(told)
