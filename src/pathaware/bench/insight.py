"""Two more tables of docs/performance.md: what a precision costs, and where a GPU spends its time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pathaware.bench.table import number
from pathaware.report.tables.markdown import pipe_table
from pathaware.report.tables.model import Table

PARTS = {
    "convolutions and their input gradients": ("convolve", "pack"),
    "weight gradients": ("weight_gradient", "cut_in_pieces", "join_splits"),
    "the first block": ("stem_",),
    "normalise, ReLU and pool of the others": ("normalise", "pull_back", "sum_first", "sum_second", "join"),
}
"""What a kernel belongs to, by how its name begins; the first that fits counts."""


def precision(folder: Path) -> str:
    """Error of a meta-gradient, and accuracy of a run, in each precision."""
    errors = json.loads((folder / "meta-gradient-h200.json").read_text(encoding="utf-8"))["median"]
    rows = []
    for name, each in errors.items():
        run = json.loads((folder / f"cifar-fs-{name}.json").read_text(encoding="utf-8"))
        result, settings = run["result"], run["config"]["training"]
        rows.append(
            [
                name,
                f"{each['plain']:.1e}",
                f"{each['kernels']:.1e}",
                f"{100 * result['accuracy']:.2f} ± {100 * result['accuracy_ci95']:.2f}",
                f"{settings['iterations']:,} in {run['training_seconds']:.0f} s",
            ]
        )
    head = ["precision", "error, layer by layer", "error, kernels", "validation accuracy, %", "iterations"]
    return pipe_table(Table.of("", head, rows))


def profile(path: Path) -> str:
    """Milliseconds and launches of each part of a meta-iteration."""
    record = json.loads(path.read_text(encoding="utf-8"))
    head, columns = ["part"], []
    for name, row in record["rows"].items():
        head += [f"{name}, ms", "launches"]
        columns.append(_parts(row))
    lines = [[part, *(cell for column in columns for cell in column[part])] for part in columns[0]]
    return pipe_table(Table.of("", head, lines))


def _parts(row: dict[str, Any]) -> dict[str, tuple[str, str]]:
    sums = {part: [0.0, 0.0] for part in (*PARTS, "rest")}
    sums["rest"] = [1e3 * row["busy_ms"], row["launches"]]
    for kernel in row["kernels"]:
        for part, begins in PARTS.items():
            if kernel["name"].startswith(begins):
                for i, key in enumerate(("microseconds", "launches")):
                    sums[part][i] += kernel[key]
                    sums["rest"][i] -= kernel[key]
                break
    named = {"rest": "head, loss, rule, sums of gradients, optimiser"}
    cells = {named.get(part, part): (number(us / 1e3), f"{count:.0f}") for part, (us, count) in sums.items()}
    idle = row["iteration_ms"] - row["busy_ms"]
    return {
        **cells,
        "between kernels": (number(idle), ""),
        "all": (number(row["iteration_ms"]), f"{row['launches']:.0f}"),
    }
