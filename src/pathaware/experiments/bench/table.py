"""A comparison as lines of cells, for the terminal and for documents alike."""

from __future__ import annotations

from typing import Any

from pathaware.experiments.bench.contestants import COMPILED
from pathaware.experiments.bench.run import contestants
from pathaware.training.tables import NOTHING, Remark

TITLES = {c.name: c.title for c in (*contestants(), COMPILED)}


def header(record: dict[str, Any], what: str) -> list[str]:
    """Contestants have a column each, in milliseconds; peers do MAML only."""
    names = [TITLES.get(name, name) for name in record["contestants"]]
    order = ["order"] if what == "training" else []
    over = [f"{other} / pathaware" for other in _compared(record)]
    return ["row", *order, "method", *names, *over, "PAMELA / MAML"]


def lines(record: dict[str, Any], what: str) -> list[list[str]]:
    """The rows of one kind, `training` or `adaptation`."""
    rows = [row for row in record["rows"] if row["what"] == what]
    cells = []
    for row in rows:
        entries = row["entries"]
        order = [row["order"]] if what == "training" else []
        cells.append(
            [
                row["row"],
                *order,
                row["method"],
                *(cell(entries.get(name, {})) for name in record["contestants"]),
                *(ratio(entries, other, entries, "pathaware") for other in _compared(record)),
                _over_maml(row, rows),
            ]
        )
    return cells


def _compared(record: dict[str, Any]) -> list[str]:
    """Those whose time is also given as a multiple of ours."""
    return [name for name in ("loop", "higher") if name in record["contestants"]]


def memory_header(record: dict[str, Any]) -> list[str]:
    return ["row", "order", "method", *(TITLES.get(name, name) for name in record["contestants"])]


def memory_lines(record: dict[str, Any]) -> list[list[str]]:
    """Megabytes of a meta-iteration, where they are known: on GPUs."""
    rows = [row for row in record["rows"] if row["what"] == "training" and record["device"] == "cuda"]
    return [
        [
            row["row"],
            row["order"],
            row["method"],
            *(_megabytes(row["entries"].get(name, {})) for name in record["contestants"]),
        ]
        for row in rows
    ]


def cell(entry: dict[str, Any]) -> str:
    """A time in milliseconds, marked if something else was computed; or why there is none."""
    if "ms" not in entry:
        reason = f"failed: {entry['error']}" if entry.get("error") else entry.get("missing")
        return Remark(reason) if reason else NOTHING
    time = number(entry["ms"])
    return time if entry["same"] else f"{time}, not the same result (off by {entry['difference']:.0e})"


def ratio(above: dict[str, Any], name: str, below: dict[str, Any], other: str) -> str:
    times = above.get(name, {}).get("ms"), below.get(other, {}).get("ms")
    return NOTHING if None in times else f"{times[0] / times[1]:.2f}"


def number(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def disagreement(record: dict[str, Any]) -> str:
    """How far apart those are that compute the same, in a sentence."""
    found = [e["difference"] for row in record["rows"] for e in row["entries"].values() if e.get("same")]
    return f"Results agree to {max(found):.0e} in float64." if found else "Nothing was compared."


def _over_maml(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """Our PAMELA against our MAML in the same race."""
    if row["method"] != "pamela":
        return NOTHING
    same = [r for r in rows if (r["row"], r["order"], r["method"]) == (row["row"], row["order"], "maml")]
    return ratio(row["entries"], "pathaware", same[0]["entries"], "pathaware") if same else NOTHING


def _megabytes(entry: dict[str, Any]) -> str:
    value = entry.get("memory_mb")
    return NOTHING if value is None else number(value)
