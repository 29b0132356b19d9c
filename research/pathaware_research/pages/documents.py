"""Tables of README.md and the pages in docs/, rendered from the records in `results/`.

    python -m pathaware_research.pages.documents . results

A table stands in a document between two comments that name it.
"""

from __future__ import annotations

import itertools
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tools import architecture
from torch import Tensor

from pathaware.report.paper_numbers import SINE_MSE
from pathaware.sweep.intervals import mean, over_seeds, over_seeds_and_tasks
from pathaware.training.config import Config
from pathaware.training.evaluation import interval_over_tasks
from pathaware.training.metric import ACCURACY, MSE, Metric
from pathaware.training.tables import NOTHING, Table, pipe_table
from pathaware_research.experiments import Experiment, Result, Results, own_level, signature
from pathaware_research.pages import (
    convergence,
    evidence_page,
    methods_page,
    performance_page,
    recipe_page,
    use_page,
)
from pathaware_research.pages.evidence_page import lead
from pathaware_research.paired import mean_lead, paired_differences
from pathaware_research.paper.complexity import table5
from pathaware_research.paper.method_table import render
from pathaware_research.paper.tables import (
    NOT_RUN,
    CellSpec,
    TableSpec,
    full_length,
    further,
    sine_methods,
    steps_table,
    strict,
    table1,
    table2,
    table3,
    table4,
)
from pathaware_research.records import Record, Records, measurement, measurements, read_records, read_results
from pathaware_research.studies import image_readings, one_step, paper_claims


def fill(text: str, blocks: Mapping[str, str]) -> str:
    """Replace the named blocks of a document; a name that the document lacks is an error."""
    for name, content in blocks.items():
        begin, end = f"<!-- {name}: made by `make tables` -->", f"<!-- end of {name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"the document has no block {name!r}")
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        text = re.sub(pattern, lambda _: f"{begin}\n{content}\n{end}", text, flags=re.DOTALL)  # noqa: B023
    return text


def is_available(data: str) -> bool:
    """True for the data sets that `results/` covers, whether or not this machine has imported them."""
    return data != "tieredimagenet"


REPORTED = "pamela-direct"
"""The row of PAMELA that tables of differences compare: the one that has results in all columns."""


@dataclass(frozen=True)
class ProblemResults:
    """One problem: the rows of its table that are compared."""

    name: str
    metric: Metric
    cells: Mapping[str, CellSpec]
    results: Results
    iterations: int | None

    def of(self, key: str) -> list[Result]:
        """The results of a row, one per seed, all of the same number of iterations."""
        return self.results.of(self.cells[key].experiment, self.iterations)

    def compared(self) -> tuple[str, list[Result], list[Result]]:
        """A row of PAMELA, its results and those of MAML, under equal conditions.

        It is the row with the paper's speed of Q if that was run. Of several lengths that both methods have,
        the one with the most seeds counts, then the largest.
        """
        for key in (key for key in ("pamela", REPORTED) if key in self.cells):
            pamela, maml = self._all(key), self._all("maml")
            lengths = sorted({r.iterations for r in pamela} & {r.iterations for r in maml}, reverse=True)
            pairs = [comparable(*(_of_length(found, n) for found in (pamela, maml))) for n in lengths]
            found, theirs = max(pairs, key=lambda pair: len(pair[0]), default=([], []))
            if theirs:
                return key, found, theirs
        return "", [], []

    def _all(self, key: str) -> list[Result]:
        found = self.results.matching(self.cells[key].experiment.config())
        return found if self.iterations is None else _of_length(found, self.iterations)


def _of_length(results: Sequence[Result], iterations: int) -> list[Result]:
    return [result for result in results if result.iterations == iterations]


def comparable(one: Sequence[Result], other: Sequence[Result]) -> tuple[list[Result], list[Result]]:
    """The results of the seeds that both have, under equal conditions."""
    by_seed = [{result.seed: result for result in results} for results in (one, other)]
    shared = sorted(by_seed[0].keys() & by_seed[1].keys())
    pairs = [(by_seed[0][seed], by_seed[1][seed]) for seed in shared]
    equal = [(a, b) for a, b in pairs if a.conditions == b.conditions]
    return [a for a, _ in equal], [b for _, b in equal]


def compared_problems(results: Results) -> Iterator[ProblemResults]:
    """The problems of Tables 1 to 3, sine first, there with nothing added to the paper's settings."""
    goal = strict()
    (column,) = goal.columns
    lines = {line.key: line.cells[column] for line in goal.rows}
    for shots in SINE_MSE:
        cells = {key: lines[f"k{shots}-{key}"] for key in ("maml", "meta-sgd", "pamela")}
        name = f"sine, {shots} points, error"
        yield _problem(name, goal, cells, results)
    for goal in (table1(is_available), table2(is_available)):
        rows = {line.key: line.cells for line in goal.rows}
        for column in goal.columns:
            cells = {key: rows[key][column] for key in ("maml", "meta-sgd", "pamela", REPORTED)}
            yield _problem(f"{column}, %, batch", goal, cells, results)


def _problem(name: str, goal: TableSpec, cells: Mapping[str, CellSpec], results: Results) -> ProblemResults:
    chosen = results.in_one_precision([cell.experiment for cell in cells.values()])
    return ProblemResults(name, goal.metric, cells, chosen, goal.iterations)


SPEEDS = {"pamela": "1", REPORTED: "100"}
"""How fast Q is learned, relative to the paper's text, by row."""


def readme(folder: Path) -> dict[str, str]:
    """MAML and PAMELA with equal settings and iterations, and PAMELA with the recipe in its own column."""
    header = (
        *("", "iterations, precision", "speed of Q", "MAML", "PAMELA"),
        *("MAML, the paper", "PAMELA, the paper", "PAMELA, our recipe, alone"),
    )
    recipe = Records("recipe", folder)
    rows = [
        (
            each.name,
            _length(maml),
            SPEEDS[key],
            _value(maml, each.metric),
            _value(pamela, each.metric),
            each.cells["maml"].printed,
            each.cells["pamela"].printed,
            recipe_page.cell(recipe, each.name),
        )
        for each in compared_problems(read_results(folder))
        for key, pamela, maml in [each.compared()]
        if maml
    ]
    return {"results": pipe_table(Table.of("", header, rows))}


def _length(results: Sequence[Result]) -> str:
    return f"{results[0].iterations:,}, {results[0].precision}" if results else NOTHING


METHODS = {
    "maml": "MAML",
    "meta-sgd": "Meta-SGD",
    "pamela": "PAMELA, speed 1",
    REPORTED: "PAMELA, Q learned directly",
}


def _verdicts(results: Results) -> Table:
    """Which of the paper's numbers for its own comparison are reproduced, by the rule of the page."""
    rows = []
    for each in compared_problems(results):
        for key in each.cells if each.of("maml") else ():
            found, printed = each.of(key), each.cells["pamela" if key == REPORTED else key].printed
            ours = _value(found, each.metric) if found else NOT_RUN
            verdict = _verdict(found, each.metric, printed)
            rows.append((each.name, METHODS[key], ours, _length(found), printed, verdict))
    return Table.of("", ("", "method", "ours", "iterations, precision", "the paper", "verdict"), rows)


def _verdict(found: Sequence[Result], metric: Metric, printed: str) -> str:
    """`reproduced` if the intervals overlap, else on which side of the paper's number ours is."""
    if len(found) < JUDGED or printed == NOTHING:
        return NOTHING
    theirs, width = (float(part) for part in printed.split(" ± "))
    estimate = over_seeds_and_tasks(found, metric)
    scale = 1 if metric.lower_is_better else 100
    low, high = scale * estimate.low, scale * estimate.high
    if low <= theirs + width and high >= theirs - width:
        return "reproduced"
    return ("higher" if low > theirs else "lower") + (" error" if metric.lower_is_better else " accuracy")


JUDGED = 3
"""Seeds that a verdict needs."""


def _value(results: Sequence[Result], metric: Metric) -> str:
    """The mean over seeds, with the number of seeds if there are several."""
    if not results:
        return NOTHING
    seeds = f" ({len(results)} seeds)" if len(results) > 1 else ""
    return f"{metric.with_interval(*mean(results, metric))}{seeds}"


def reproduction_page(folder: Path) -> dict[str, str]:
    """The paper's tables, our settings, and every other result."""
    results = read_results(folder)
    beyond, full = further(is_available), full_length(is_available)
    goals = [table1(is_available), table2(is_available), full, beyond, strict(), table3()]
    goals.append(table4("miniimagenet", is_available))
    complexity = map(table5, measurements(folder, "timings/complexity-*").values())
    by_steps = steps_table("miniimagenet", is_available)
    shown_elsewhere = table3(guard=False), sine_methods(), methods_page.equal_time_table(), by_steps
    return {
        **{
            goal.name: _rendered(goal, results)
            for goal in goals
            if goal.name not in ("strict", "table3", "full")
        },
        "table5": "\n\n".join(map(pipe_table, complexity)),
        "readings": pipe_table(_readings(measurement(folder, "other/readings-sine"))),
        "verdicts": pipe_table(_verdicts(results)),
        "image-readings": pipe_table(image_readings.table(folder)),
        **paper_claims.blocks(folder),
        "paired": pipe_table(_paired(results)),
        "against-all": pipe_table(_against_all([methods_page.compared_on_images(folder, d) for d in SETS])),
        "full": pipe_table(_full(full, results)),
        "full-differences": pipe_table(_full_differences(full, results)),
        "further-differences": pipe_table(_against_all([methods_page.of_equal_length(beyond, results)])),
        "others": pipe_table(_others(folder, [*goals, *shown_elsewhere], one_step.METHODS.values())),
        "convergence": pipe_table(convergence.table(folder)),
        **evidence_page.blocks(folder, results),
    }


def _rendered(goal: TableSpec, results: Results) -> str:
    """The columns with data, and how all rows were trained if that is the same."""
    there = [c for c in goal.columns if not all(row.cells[c].reason for row in goal.rows)]
    table = render(goal.select(columns=there), results)
    return "\n\n".join([pipe_table(table), *table.notes[len(goal.notes) :]])


SETS = ("miniImageNet", "CIFAR-FS")
USUAL_LENGTH = 12_000
"""The number of iterations of most rows of Tables 1 and 2."""
PAIRS = ((REPORTED, "maml"), (REPORTED, "meta-sgd"), ("meta-sgd", "maml"))


def _paired(results: Results) -> Table:
    """Differences between methods on the same tasks, per seed and over seeds, in points of accuracy."""
    rows = []
    for spec in (table1(is_available), table2(is_available)):
        for column in spec.columns:
            cells = {row.key: row.cells[column].experiment for row in spec.rows}
            chosen = results.in_one_precision([*cells.values()])
            length = chosen.common_length([*cells.values()])
            printed = {row.key: row.cells[column].printed.partition(" ")[0] for row in spec.rows}
            for one, other in PAIRS:
                per_seed = paired_differences(*(chosen.of(cells[key], length) for key in (one, other)))
                if per_seed:
                    theirs = float(printed[one.removesuffix("-direct")]) - float(printed[other])
                    rows.append((column, f"{one} − {other}", *_difference_cells(per_seed), f"{theirs:+.1f}"))
    header = ("", "difference", "each seed", "mean, ± over tasks", "± over seeds", "the paper")
    return Table.of("", header, rows)


def _full(spec: TableSpec, results: Results) -> Table:
    """MAML and PAMELA at the paper's length, a row per data set and number of shots."""
    results = results.in_one_precision(spec.experiments())
    cited = {row.key: any(cell.printed != NOTHING for cell in row.cells.values()) for row in spec.rows}
    header = [title for row in spec.rows for title in ([row.label, "the paper"][: 1 + cited[row.key]])]
    rows = []
    for column in spec.columns:
        texts = [column]
        for row in spec.rows:
            found = results.of(row.cells[column].experiment, spec.iterations)
            value = _value(found, spec.metric) if found else NOT_RUN
            texts += [value, row.cells[column].printed][: 1 + cited[row.key]]
        rows.append(texts)
    return Table.of("", ("", *header), rows)


def _full_differences(spec: TableSpec, results: Results) -> Table:
    """MAML and PAMELA at the paper's length: their difference, and what each gains over the usual length."""
    assert spec.iterations is not None
    results = results.in_one_precision(spec.experiments())
    rows = []
    for column in spec.columns:
        cells = {row.key: row.cells[column].experiment for row in spec.rows}
        short, long = (
            {key: results.of(cells[key], length) for key in ("maml", REPORTED)}
            for length in (USUAL_LENGTH, spec.iterations)
        )
        leads = [lead(found[REPORTED][:1], found["maml"][:1]) for found in (short, long)]
        gains = [lead(long[key], short[key], except_for=["iterations"]) for key in ("maml", REPORTED)]
        rows.append((column, *leads, *gains))
    lengths = (f"{REPORTED} − maml, {length:,}" for length in (USUAL_LENGTH, spec.iterations))
    return Table.of("", ("", *lengths, "maml, gain", f"{REPORTED}, gain"), rows)


def _against_all(compared: Sequence[dict[str, dict[str, list[Result]]]]) -> Table:
    """PAMELA minus every other method on the same tasks, largest mean lead first.

    `compared` has the results of one table or several with the same rows, by row and column.
    """
    pairs: dict[str, dict[str, list[Tensor]]] = {}
    for table in compared:
        for name, cells in table.items():
            for column, pamela in table[REPORTED].items():
                pairs.setdefault(name, {})[column] = paired_differences(pamela, cells[column])
    columns = pairs.pop(REPORTED)
    rows = []
    for name, by_column in pairs.items():
        there = [torch.stack(pair).mean().item() for pair in by_column.values() if pair]
        leads = [mean_lead(pair) if pair else NOT_RUN for pair in by_column.values()]
        if there:
            rows.append((statistics.fmean(there), (f"{REPORTED} − {name}", *leads)))
    rows.sort(key=lambda row: -row[0])
    return Table.of("", ("difference", *columns), [row for _, row in rows])


def _difference_cells(per_seed: list[Tensor]) -> tuple[str, str, str]:
    points = [100 * seed for seed in per_seed]
    means = [float(seed.mean()) for seed in points]
    seeds = over_seeds(means)
    each = ", ".join(f"{value:+z.2f}" for value in means)
    mean_value = f"{statistics.fmean(means):+.2f} ± {interval_over_tasks(torch.stack(points).mean(0)):.2f}"
    return each, mean_value, NOTHING if seeds is None else f"± {seeds:.2f}"


def _readings(record: Record) -> Table:
    """Other readings of the paper: mean over seeds, every seed, and the worst task."""
    rows = []
    for name in dict.fromkeys(each["reading"] for each in record["readings"]):
        found = [each for each in record["readings"] if each["reading"] == name]
        values = [each["mse"] for each in found]
        worst = max(each["mse_max"] for each in found)
        seeds = ", ".join(f"{value:.4f}" for value in values)
        rows.append((name, f"{sum(values) / len(values):.4f}", seeds, f"{worst:.3g}"))
    return Table.of("", ("reading", "MSE", "each seed", "worst task"), rows)


def _others(folder: Path, goals: Sequence[TableSpec], studied: Iterable[Sequence[Experiment]]) -> Table:
    """Results that no other table shows, with the settings that differ from the defaults."""
    shown = itertools.chain(*(goal.experiments() for goal in goals), *studied)
    known = {signature(experiment.config()) for experiment in shown}
    rows = []
    for study, name, record in sorted(read_records(folder), key=lambda found: f"{found[1]}.json"):
        result = Result(record)
        if result.signature in known and result.queries == own_level(result.config):
            continue
        if name.startswith(evidence_page.STUDIES) or record["result"]["split"] != "test":
            continue
        metric = ACCURACY if "accuracy" in record["result"] else MSE
        value = metric.with_interval(*result.value(metric))
        level = result.queries
        if result.conditions["balance"] != "balanced":
            level += ", unbalanced"
        link = f"[{name}](../results/runs/{study}.jsonl#{name})"
        rows.append((link, level, value, _changed_settings(record)))
    return Table.of("", ("file", "queries", "result", "settings other than the defaults"), rows)


def _changed_settings(record: dict[str, Any]) -> str:
    """`q_granularity tensor-channel, iterations 17000`"""
    config = Config.from_dict(record["config"])
    default = Config.from_dict({"problem": {"name": config.problem.name}, "method": {"name": config.method}})
    defaults = default.to_dict()
    irrelevant = ("validate", "validation_tasks", "device", "threads", "precision", "save", "data", "seed")
    changed = [
        f"{key} {value}"
        for table, values in config.to_dict().items()
        for key, value in values.items()
        if value != defaults[table][key] and key not in irrelevant
    ]
    return ", ".join(changed)


PAGES: dict[str, Callable[[Path], dict[str, str]]] = {
    "README.md": readme,
    "docs/answers.md": use_page.answers,
    "docs/choosing.md": recipe_page.choosing,
    "docs/internals.md": lambda folder: {"map": architecture.package_map()},
    "docs/methods.md": methods_page.blocks,
    "docs/online.md": use_page.online,
    "docs/own-data.md": use_page.own_data,
    "docs/performance.md": performance_page.blocks,
    "docs/photos.md": use_page.photos,
    "docs/recipe.md": recipe_page.blocks,
    "docs/reproduction.md": reproduction_page,
}
"""For each document, the function that renders its blocks from the folder of results."""

if __name__ == "__main__":
    root, folder = (Path(argument) for argument in sys.argv[1:])
    for name, blocks in PAGES.items():
        document = root / name
        document.write_text(fill(document.read_text(encoding="utf-8"), blocks(folder)), encoding="utf-8")
