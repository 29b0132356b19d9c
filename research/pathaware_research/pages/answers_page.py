"""The tables of docs/answers.md, rendered from the records of `pathaware_research.studies.answers`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pathaware.training.tables import Row, Table, pipe_table
from pathaware_research.records import measurement

DATA = {"glyphs": "glyphs", "cifar-fs": "CIFAR-FS"}
SPLITS = {"test": "test classes", "val": "validation classes"}
Rows = Callable[[str, dict[str, Any]], list[tuple[str, ...]]]


def blocks(folder: Path) -> dict[str, str]:
    return {
        "unknown": _table(folder, "open-set", UNKNOWN, _unknown),
        "calibration": _table(folder, "open-set", CALIBRATION, _calibration),
        "scores": _table(folder, "scores", TRIED, _tried, ("cifar-fs",)),
        "labels": _table(folder, "labels", LABELS, _labels),
        "suggest": _table(folder, "suggest", SUGGEST, _suggest),
    }


def _table(
    folder: Path, study: str, header: tuple[str, ...], rows: Rows, data: Sequence[str] = tuple(DATA)
) -> str:
    """One table of all records of a study, named in a line below it."""
    names = {DATA[each]: f"use/answers-{study}-{each}" for each in data}
    records = {title: measurement(folder, name) for title, name in names.items()}
    cells = [row for name, record in records.items() for row in rows(name, record)]
    tasks = ", ".join(f"{r['tasks']:,} on {name}, {SPLITS[r['split']]}" for name, r in records.items())
    text = f"*Tasks: {tasks}. From {', '.join(f'`results/{name}.json`' for name in names.values())}.*"
    return f"{pipe_table(Table('', header, [Row(row) for row in cells]))}\n\n{text}"


def _percent(entry: dict[str, float]) -> str:
    return f"{100 * entry['mean']:.1f} ± {100 * entry['ci95']:.1f}"


UNKNOWN = (
    *("data", "score", "AUROC", "FPR at 95 %"),
    *(f"refused at {share} %: known, foreign, %" for share in (1, 5, 10)),
)


def _unknown(name: str, record: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for score, found in record["measured"]["scores"].items():
        shares = (
            f"{100 * r['known']:.1f} ± {100 * r['known_ci95']:.1f}, "
            f"{100 * r['foreign']:.1f} ± {100 * r['foreign_ci95']:.1f}"
            for r in found["refused"]
        )
        rows.append((name, score, f"{found['auroc']:.3f}", f"{found['fpr95']:.3f}", *shares))
    return rows


TRIED = ("data", "score", "AUROC", *(f"foreign refused at {share} %, %" for share in (1, 5, 10)))


def _tried(name: str, record: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            score,
            f"{row['auroc']:.3f}",
            *(f"{100 * row[f'refused at {share}']:.1f}" for share in ("0.01", "0.05", "0.1")),
        )
        for score, row in record["measured"].items()
    ]


CALIBRATION = ("data", "accuracy, %", "temperature", "calibration error before, %", "after, %")


def _calibration(name: str, record: dict[str, Any]) -> list[tuple[str, ...]]:
    found = record["measured"]
    errors = (f"{100 * found[key]:.2f}" for key in ("calibration_error", "calibrated_error"))
    return [(name, _percent(found["accuracy"]), f"{found['temperature']:.3f}", *errors)]


LABELS = ("data", "rule", "1 planted: first, %", "in the first two, %", "2 planted: in the first four, %")


def _labels(name: str, record: dict[str, Any]) -> list[tuple[str, ...]]:
    one, two = record["measured"]["1 planted"], record["measured"]["2 planted"]
    rules = dict.fromkeys(key.rpartition(", first")[0] for key in one)
    tasks = {rule: one[f"{rule}, first 1"]["tasks"] for rule in rules}
    return [
        (
            name,
            rule if tasks[rule] == record["tasks"] else f"{rule} ({tasks[rule]} tasks)",
            _percent(one[f"{rule}, first 1"]),
            _percent(one[f"{rule}, first 2"]),
            _percent(two[f"{rule}, first 4"]) if f"{rule}, first 4" in two else "–",
        )
        for rule in rules
    ]


SUGGEST = ("data", "rule", "accuracy, %", "more than random, points")


def _suggest(name: str, record: dict[str, Any]) -> list[tuple[str, ...]]:
    found = record["measured"]
    more = found["more_than_random"]
    return [
        (name, rule, _percent(entry), _percent(more[rule]) if rule in more else "–")
        for rule, entry in found["accuracy"].items()
    ]
