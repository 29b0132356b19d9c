"""The tables of README.md and of several pages in docs/, rendered from the files in `results/`.

python -m pathaware.reproduce.document . results
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pathaware.online.document import online_page
from pathaware.report.blocks import fill
from pathaware.report.tables.markdown import pipe_table
from pathaware.report.tables.model import NOTHING, Row, Table
from pathaware.reproduce.ablation import table4
from pathaware.reproduce.complexity import table5
from pathaware.reproduce.goal import Goal
from pathaware.reproduce.image_tables import TUNED, table1, table2
from pathaware.reproduce.method_document import contests, methods_page
from pathaware.reproduce.render import mean, render, shown
from pathaware.reproduce.results import Result, Results
from pathaware.reproduce.sine_table import table3
from pathaware.reproduce.trial import signature
from pathaware.training.config import Config
from pathaware.use.document import own_data_page


def at_hand(data: str) -> bool:
    """Which sets our results are of, whatever this machine has: tieredImageNet's images we could not get."""
    return data != "tieredimagenet"


def readme(folder: Path) -> dict[str, str]:
    return {"results": pipe_table(_summary(Results.read(folder)))}


def reproduction(folder: Path) -> dict[str, str]:
    results = Results.read(folder)
    goals = [table1(at_hand), table2(at_hand), table3(), table4("cifar-fs", at_hand)]
    blocks = {goal.name: pipe_table(render(goal, results)) for goal in goals}
    blocks["table5"] = "\n\n".join(
        pipe_table(table5(json.loads(path.read_text(encoding="utf-8"))))
        for path in sorted(folder.glob("complexity-*.json"))
    )
    blocks["readings"] = pipe_table(_readings(json.loads((folder / "readings-sine.json").read_text())))
    blocks["standing"] = pipe_table(_standing(results))
    blocks["tried"] = pipe_table(_tried(json.loads((folder / "tried-cifar-fs-h200.json").read_text())))
    blocks["others"] = pipe_table(_others(folder, [*goals, *contests()]))
    return blocks


def _summary(results: Results) -> Table:
    """PAMELA and MAML, ours and the paper's: the longest training there is of each."""
    rows = []
    for column, metric, found, printed in [*_waves(results), *_images(results)]:
        pamela = max((found[TUNED], found["pamela"]), key=lambda r: r[0].iterations if r else 0)
        if pamela:
            numbers = _told(found["maml"], metric), _told(pamela, metric)
            rows.append(Row((column, *numbers, printed["maml"], printed["pamela"])))
    return Table("", ("", "MAML, ours", "PAMELA, ours", "MAML, the paper", "PAMELA, the paper"), rows)


Found = tuple[str, str, dict[str, Sequence[Result]], dict[str, str]]
"""A problem, its metric, our results by method, and the paper's numbers."""


def _waves(results: Results) -> Iterator[Found]:
    goal = table3()
    (column,) = goal.columns
    places = {line.key: line.places[column] for line in goal.lines}
    for shots in (5, 10, 20):
        own = {key: places[f"k{shots}-{key}"] for key in ("maml", "pamela")}
        found: dict[str, Sequence[Result]] = {key: results.of(place.trial) for key, place in own.items()}
        printed = {key: place.printed for key, place in own.items()}
        yield f"sine, {shots} points, error", goal.metric, {**found, TUNED: ()}, printed


def _images(results: Results) -> Iterator[Found]:
    for goal in (table1(at_hand), table2(at_hand)):
        places = {line.key: line.places for line in goal.lines}
        for column in goal.columns:
            found: dict[str, Sequence[Result]] = {
                key: results.of(places[key][column].trial) for key in ("maml", "pamela", TUNED)
            }
            printed = {key: places[key][column].printed for key in ("maml", "pamela")}
            yield f"{column}, %", goal.metric, found, printed


def _standing(results: Results) -> Table:
    """PAMELA's numbers and its lead over MAML, with our settings and the paper's."""
    rows = []
    for column, metric, found, printed in _images(results):
        if found["pamela"] or found[TUNED]:
            numbers = [_told(found[key], metric) for key in (TUNED, "pamela", "maml")]
            lead = f"{_value(printed['pamela']) - _value(printed['maml']):+.1f}"
            name = column.removesuffix(", %")
            rows.append(Row((name, printed["pamela"], *numbers, lead, _lead(found, metric))))
    header = (
        "",
        "the paper",
        "ours, our settings",
        "ours, its settings",
        "our MAML",
        "its lead over MAML",
        "ours, as long",
    )
    return Table("", header, rows)


def _told(found: Sequence[Result], metric: str) -> str:
    return f"{shown(*mean(found, metric), metric)} ({found[0].iterations:,})" if found else NOTHING


def _lead(found: Mapping[str, Sequence[Result]], metric: str) -> str:
    """Of runs of the same settings and length only."""
    pamela, maml = found["pamela"], found["maml"]
    if not pamela or not maml or pamela[0].iterations != maml[0].iterations:
        return NOTHING
    return f"{100 * (mean(pamela, metric)[0] - mean(maml, metric)[0]):+.1f}"


def _value(printed: str) -> float:
    return float(printed.partition(" ")[0])


def _tried(record: dict[str, Any]) -> Table:
    rows = []
    for each in record["tried"]:
        value = shown(each["accuracy"], each["accuracy_ci95"], "accuracy")
        rows.append(Row((each["what"], value, f"{each['train_loss']:.3f}")))
    return Table("", ("settings", "validation, %", "training loss"), rows)


def _readings(record: dict[str, Any]) -> Table:
    """Mean and range over seeds, the chosen reading first."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for each in record["readings"]:
        by_name.setdefault(each["reading"], []).append(each)
    rows = []
    for name, found in by_name.items():
        values = [each["mse"] for each in found]
        cells = (
            name,
            f"{sum(values) / len(values):.4f}",
            ", ".join(f"{value:.4f}" for value in values),
            f"{max(each['mse_max'] for each in found):.3g}",
        )
        rows.append(Row(cells))
    return Table("", ("reading", "MSE", "each seed", "worst task"), rows)


def _others(folder: Path, goals: Sequence[Goal]) -> Table:
    """Every other result there is, with the settings in which it differs from the defaults."""
    known = {signature(trial.config()) for goal in goals for trial in goal.trials()}
    rows = []
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "result" not in record or (
            Result.of(record).signature in known and record["result"]["transductive"]
        ):
            continue
        metric = "accuracy" if "accuracy" in record["result"] else "mse"
        kind = "" if record["result"]["transductive"] else ", inductive"
        value = shown(*Result.of(record).value(metric), metric)
        rows.append(Row((f"[{path.stem}](../results/{path.name}){kind}", value, _settings(record))))
    return Table("", ("file", "result", "settings other than the defaults"), rows)


def _settings(record: dict[str, Any]) -> str:
    """`q_granularity tensor-channel, iterations 17000`"""
    config = Config.from_dict(record["config"])
    plain = Config.from_dict(
        {"problem": {"name": config.problem.name}, "method": {"name": config.method}}
    ).to_dict()
    irrelevant = ("validate", "validation_tasks", "device", "threads", "precision", "save", "data", "seed")
    told = [
        f"{key} {value}"
        for table, values in config.to_dict().items()
        for key, value in values.items()
        if value != plain[table][key] and key not in irrelevant
    ]
    return ", ".join(told)


PAGES: dict[str, Callable[[Path], dict[str, str]]] = {
    "README.md": readme,
    "docs/methods.md": methods_page,
    "docs/online.md": online_page,
    "docs/own-data.md": own_data_page,
    "docs/reproduction.md": reproduction,
}
"""What makes the tables of each document."""

if __name__ == "__main__":
    root, folder = (Path(argument) for argument in sys.argv[1:])
    for name, made in PAGES.items():
        document, blocks = root / name, made(folder)
        document.write_text(fill(document.read_text(encoding="utf-8"), blocks), encoding="utf-8")
