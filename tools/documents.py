"""Parts of a document that are made from files: each stands between two comments that carry its name."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pathaware.experiments.online.report import race_table
from pathaware.experiments.paper.complexity import table5
from pathaware.experiments.paper.method_table import mean, method_table, render
from pathaware.experiments.paper.tables import TUNED, TableSpec, table1, table2, table3, table4
from pathaware.experiments.run_store import Result, Results, signature
from pathaware.methods import METHODS
from pathaware.online.streams import STREAMS
from pathaware.training.config import Config
from pathaware.training.metric import ACCURACY, MSE, Metric
from pathaware.training.tables import NOTHING, Row, Table, pipe_table


def fill(text: str, blocks: Mapping[str, str]) -> str:
    """`text` with these parts put in by name. A part that the document does not have is an error."""
    for name, content in blocks.items():
        begin, end = f"<!-- {name}: made by `make tables` -->", f"<!-- end of {name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"the document has no part {name!r}")
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        text = re.sub(pattern, lambda _: f"{begin}\n{content}\n{end}", text, flags=re.DOTALL)  # noqa: B023
    return text


# The tables of docs/online.md, from the records of races in `results/`.


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


# The table of docs/own-data.md: what another number of classes costs, from the records in `results/`.


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


# The tables of docs/methods.md: what methods there are, and what they reach in the same time.


def contests() -> list[TableSpec]:
    """The data sets that all methods were trained on, wherever that was."""
    return [method_table(data, lambda name: True) for data in ("glyphs", "cifar-fs")]


def in_the_same_time(folder: Path) -> dict[str, str]:
    """A table for each data set, by the name of the set."""
    found = {}
    for goal in contests():
        experiments = goal.experiments()
        table = render(goal, Results.read(folder, [experiment.name for experiment in experiments]))
        found[str(experiments[0].tables["problem"]["data"])] = pipe_table(table)
    return found


def methods_page(folder: Path) -> dict[str, str]:
    rows = [
        Row((f"`{m.name}`", m.summary, m.order, "queries" if m.queries else "batch norm", m.paper))
        for m in METHODS.values()
    ]
    header = ("method", "what it does", "order", "transductive by", "paper")
    return {"list": pipe_table(Table("", header, rows)), **in_the_same_time(folder)}


# The tables of README.md and of several pages in docs/, rendered from the files in `results/`.
#
# python -m tools.documents . results


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


Found = tuple[str, Metric, dict[str, Sequence[Result]], dict[str, str]]
"""A problem, its metric, our results by method, and the paper's numbers."""


def _waves(results: Results) -> Iterator[Found]:
    goal = table3()
    (column,) = goal.columns
    cells = {row.key: row.cells[column] for row in goal.rows}
    for shots in (5, 10, 20):
        own = {key: cells[f"k{shots}-{key}"] for key in ("maml", "pamela")}
        found: dict[str, Sequence[Result]] = {key: results.of(cell.experiment) for key, cell in own.items()}
        printed = {key: cell.printed for key, cell in own.items()}
        yield f"sine, {shots} points, error", goal.metric, {**found, TUNED: ()}, printed


def _images(results: Results) -> Iterator[Found]:
    for goal in (table1(at_hand), table2(at_hand)):
        cells = {row.key: row.cells for row in goal.rows}
        for column in goal.columns:
            found: dict[str, Sequence[Result]] = {
                key: results.of(cells[key][column].experiment) for key in ("maml", "pamela", TUNED)
            }
            printed = {key: cells[key][column].printed for key in ("maml", "pamela")}
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


def _told(found: Sequence[Result], metric: Metric) -> str:
    return f"{metric.with_interval(*mean(found, metric))} ({found[0].iterations:,})" if found else NOTHING


def _lead(found: Mapping[str, Sequence[Result]], metric: Metric) -> str:
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
        value = ACCURACY.with_interval(each["accuracy"], each["accuracy_ci95"])
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


def _others(folder: Path, goals: Sequence[TableSpec]) -> Table:
    """Every other result there is, with the settings in which it differs from the defaults."""
    known = {signature(each.config()) for goal in goals for each in goal.experiments()}
    rows = []
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "result" not in record or (
            Result.of(record).signature in known and record["result"]["transductive"]
        ):
            continue
        metric = ACCURACY if "accuracy" in record["result"] else MSE
        kind = "" if record["result"]["transductive"] else ", inductive"
        value = metric.with_interval(*Result.of(record).value(metric))
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
