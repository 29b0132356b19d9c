"""What training took."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pathaware.report.looks import labels
from pathaware.report.tables.model import NOTHING, Table
from pathaware.training.run import Run


def training_table(runs: Sequence[Run]) -> Table:
    """Time, memory where a GPU held it, and meta-gradients that were not finite and so not followed."""
    lines = [[name, *_cells(list(run.metrics()))] for name, run in zip(labels(runs), runs, strict=True)]
    return Table.of("Training", ["run", "iterations", "minutes", "GPU memory, MB", "skipped"], lines)


def _cells(rows: list[dict[str, Any]]) -> list[str]:
    memory = rows[-1].get("memory_mb")
    return [
        f"{rows[-1]['iteration']:,}",
        f"{rows[-1]['seconds'] / 60:.1f}",
        NOTHING if memory is None else f"{memory:,.0f}",
        str(sum(row["skipped"] for row in rows)),
    ]
