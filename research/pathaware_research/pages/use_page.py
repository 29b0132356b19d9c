"""Tables of docs/answers.md, photos.md, own-data.md and online.md: measurements of models in use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pathaware.training.tables import NOTHING, Table, pipe_table
from pathaware_research.online.report import comparison_table
from pathaware_research.online.streams import STREAMS
from pathaware_research.records import Record, measurement

DATA = {
    "glyphs": "glyphs",
    "cifar-fs": "CIFAR-FS",
}
SPLITS = {"test": "test classes", "val": "validation classes"}


def percent(found: Mapping[str, float], mean: str = "mean", ci95: str = "ci95", form: str = ".1f") -> str:
    """`76.3 ± 0.4`, of a mean and half the width of its interval."""
    return f"{100 * found[mean]:{form}} ± {100 * found[ci95]:{form.removeprefix('+')}}"


def answers(folder: Path) -> dict[str, str]:
    """A table per study, with all data sets, and a line that names its tasks and records."""
    blocks = {}
    for block, (study, header, rows) in ANSWERS.items():
        data = ("cifar-fs",) if study == "scores" else ("glyphs", "cifar-fs")
        names = {DATA[each]: f"use/answers-{study}-{each}" for each in data}
        records = {title: measurement(folder, name) for title, name in names.items()}
        lines = [(title, *row) for title, record in records.items() for row in rows(record)]
        tasks = ", ".join(f"{r['tasks']:,} on {title}, {SPLITS[r['split']]}" for title, r in records.items())
        sources = ", ".join(f"`results/{name}.json`" for name in names.values())
        table = pipe_table(Table.of("", ("data", *header), lines))
        blocks[block] = f"{table}\n\n*Tasks: {tasks}. From {sources}.*"
    return blocks


def _unknown(record: Record) -> list[tuple[str, ...]]:
    return [
        (
            score,
            f"{found['auroc']:.3f}",
            f"{found['fpr95']:.3f}",
            *(
                f"{percent(r, 'known', 'known_ci95')}, {percent(r, 'foreign', 'foreign_ci95')}"
                for r in found["refused"]
            ),
        )
        for score, found in record["measured"]["scores"].items()
    ]


def _tried(record: Record) -> list[tuple[str, ...]]:
    shares = [f"refused at {share}" for share in ("0.01", "0.05", "0.1")]
    return [
        (score, f"{row['auroc']:.3f}", *(f"{100 * row[share]:.1f}" for share in shares))
        for score, row in record["measured"].items()
    ]


def _calibration(record: Record) -> list[tuple[str, ...]]:
    found = record["measured"]
    errors = (f"{100 * found[key]:.2f}" for key in ("calibration_error", "calibrated_error"))
    return [(percent(found["accuracy"]), f"{found['temperature']:.3f}", *errors)]


def _labels(record: Record) -> list[tuple[str, ...]]:
    one, two = record["measured"]["1 planted"], record["measured"]["2 planted"]
    rows: list[tuple[str, ...]] = []
    for rule in dict.fromkeys(key.rpartition(", first")[0] for key in one):
        first, tasks = one[f"{rule}, first 1"], one[f"{rule}, first 1"]["tasks"]
        title = rule if tasks == record["tasks"] else f"{rule} ({tasks} tasks)"
        last = two.get(f"{rule}, first 4")
        cells = (percent(first), percent(one[f"{rule}, first 2"]), percent(last) if last else NOTHING)
        rows.append((title, *cells))
    return rows


def _suggest(record: Record) -> list[tuple[str, ...]]:
    accuracy, more = record["measured"]["accuracy"], record["measured"]["more_than_random"]
    return [
        (rule, percent(entry), percent(more[rule]) if rule in more else NOTHING)
        for rule, entry in accuracy.items()
    ]


Rows = Callable[[Record], list[tuple[str, ...]]]
REFUSED = tuple(f"refused at {share} %: known, foreign, %" for share in (1, 5, 10))
FOREIGN = tuple(f"foreign refused at {share} %, %" for share in (1, 5, 10))
PLANTED = ("1 planted: first, %", "in the first two, %", "2 planted: in the first four, %")
ERRORS = ("calibration error before, %", "after, %")
ANSWERS: dict[str, tuple[str, tuple[str, ...], Rows]] = {
    "unknown": ("open-set", ("score", "AUROC", "FPR at 95 %", *REFUSED), _unknown),
    "calibration": ("open-set", ("accuracy, %", "temperature", *ERRORS), _calibration),
    "scores": ("scores", ("score", "AUROC", *FOREIGN), _tried),
    "labels": ("labels", ("rule", *PLANTED), _labels),
    "suggest": ("suggest", ("rule", "accuracy, %", "more than random, points"), _suggest),
}
"""Study, header and rows of each table of docs/answers.md."""


def photos(folder: Path) -> dict[str, str]:
    """The model `photos`: how its head was chosen, its accuracy by set and shots, and what it refuses."""
    record, chosen = (measurement(folder, f"use/{name}") for name in ("photos", "photos-choice"))
    titles = {"photos": "`photos`", "nearest mean": "nearest class mean"}
    titles["logistic, C = 10"] = "logistic regression, C = 10"

    def accuracy(name: str) -> Callable[[Record], str]:
        return lambda row: percent(row[name]["accuracy"], form=".2f")

    def lead(name: str) -> Callable[[Record], str]:
        return lambda row: percent(row["lead"][name], form="+.2f")

    def refused(share: str, kind: str) -> Callable[[Record], str]:
        return lambda row: percent(row["unknown"][share][kind]) if kind in row["unknown"][share] else NOTHING

    accuracies = {title: accuracy(name) for name, title in titles.items()}
    accuracies["confidence"] = lambda row: f"{100 * _overconfidence(row['photos']):+.1f}"
    accuracies["lead over logistic regression"] = lead("logistic, C = 10")
    unknown: dict[str, Callable[[Record], str]] = {
        f"{kind}, at {100 * share:g} %": refused(f"{share:g}", kind)
        for share in (0.05, 0.1)
        for kind in ("known", "foreign")
    }
    return {
        "choice": _heads(chosen["rows"]),
        "photos": _by_size(record, accuracies),
        "unknown": _by_size(record, unknown),
    }


def _overconfidence(found: Record) -> float:
    """Confidence minus accuracy."""
    return float(found["confidence"] - found["accuracy"]["mean"])


def _heads(rows: list[Record]) -> str:
    """The mean over all rows for each head."""
    lines = []
    for name in rows[0].keys() - {"data", "ways", "shots"}:
        found = [row[name] for row in rows]
        mean = sum(each["accuracy"]["mean"] for each in found) / len(found)
        away = sum(abs(_overconfidence(each)) for each in found) / len(found)
        lines.append((name, f"{100 * mean:.2f}", f"{100 * away:.1f}"))
    order = list(rows[0])
    lines.sort(key=lambda line: order.index(line[0]))
    return pipe_table(Table.of("", ("head", "accuracy, %", "confidence is away by"), lines))


def _by_size(record: Record, columns: Mapping[str, Callable[[Record], str]]) -> str:
    """A row for each data set and number of shots of a record."""
    rows = [
        (row["data"], str(row["shots"]), *(cell(row) for cell in columns.values())) for row in record["rows"]
    ]
    return pipe_table(Table.of("", ("set", "shots", *columns), rows))


WAYS = {
    "five, by the rule": "trained with 5, step sizes scaled",
    "same rates": "trained with 5, step sizes unchanged",
    "trained for it": "trained with this number",
}


def own_data(folder: Path) -> dict[str, str]:
    """Accuracy with another number of classes than in training."""
    rows = []
    for name in ("glyphs", "cifar-fs"):
        for row in measurement(folder, f"use/ways-{name}")["rows"]:
            cells = (percent(row[k], "accuracy", "accuracy_ci95") if k in row else NOTHING for k in WAYS)
            rows.append((DATA[name], str(row["classes"]), *cells))
    return {"ways": pipe_table(Table.of("", ("", "classes", *WAYS.values()), rows))}


def online(folder: Path) -> dict[str, str]:
    """A table per stream, and one of other settings of the online learner on sine waves."""
    variants = {
        "pull": 'φ constant, `order="pull"`',
        "first": 'no Hessians, `order="first"`',
        "alone": "the newest item alone, `replay=1`",
    }
    records = {name: measurement(folder, f"other/online-{name}") for name in STREAMS}
    learners: dict[str, Any] = {k: records["sine"]["contestants"][k] for k in ("online", "literal")}
    for name, label in variants.items():
        found = measurement(folder, f"other/online-sine-{name}")["contestants"]["online"]
        learners[name] = {**found, "label": label}
    records["readings"] = {**records["sine"], "contestants": learners}
    return {name: pipe_table(comparison_table(record)) for name, record in records.items()}
