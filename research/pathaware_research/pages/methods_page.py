"""Blocks of docs/methods.md: the list of methods, and their results and times beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pathaware.methods import METHODS
from pathaware.methods.method import Method
from pathaware.sweep.intervals import mean
from pathaware.training.metric import ACCURACY
from pathaware.training.tables import NOTHING, Table, pipe_table
from pathaware_research.experiments import Result, Results
from pathaware_research.pages.method_pages import page_name
from pathaware_research.paper.method_table import method_table, render
from pathaware_research.paper.tables import NOT_RUN, TableSpec, table1, table2
from pathaware_research.records import measurement, read_results

COLUMNS = ("CIFAR-FS 1-shot", "CIFAR-FS 5-shot")


def blocks(folder: Path) -> dict[str, str]:
    rows = [(_link(m), m.summary, m.order, m.paper) for m in METHODS.values()]
    header = ("method", "what it does", "order", "paper")
    return {
        "list": pipe_table(Table.of("", header, rows)),
        "glyphs": pipe_table(glyph_ranking(folder)),
        "cifar-fs": pipe_table(image_ranking(folder)),
    }


def _link(method: Method) -> str:
    return f"[`{method.name}`](methods/{page_name(method)})"


def method_times(folder: Path, workload: str) -> dict[str, dict[str, float]]:
    """`training_ms` per task and meta-iteration and `adaptation_ms` per task, by method."""
    found: dict[str, dict[str, float]] = measurement(folder, "timings/method-times-cpu")["workloads"][
        workload
    ]
    return found


def equal_time_table() -> TableSpec:
    """All methods on glyphs, trained for the same time."""
    return method_table("glyphs", lambda name: True)


def glyph_ranking(folder: Path) -> Table:
    """All methods on glyphs, with the CPU time of their iterations on one thread.

    The seconds of records are those of machines with other load; CPU time hardly depends on it.
    """
    spec = equal_time_table()
    results = read_results(folder, [experiment.name for experiment in spec.experiments()])
    table, times = render(spec, results), method_times(folder, "glyphs")
    tasks = spec.experiments()[0].config().training.tasks
    rows = []
    for row in table.rows:
        name, year, order, level, _, accuracy, iterations, _ = row.cells
        seconds = NOTHING
        if iterations != NOTHING and name in times:
            count = int(iterations.replace(",", ""))
            seconds = f"{count * tasks * times[name]['training_ms'] / 1e3:.0f}"
        shown = "pamela-direct" if name == "pamela" else name  # as the preset for glyphs has it
        rows.append((shown, year, order, level, accuracy, iterations, seconds))
    header = [title for title in table.header if title not in ("before", "seconds")]
    return Table.of("", (*header, "CPU seconds"), rows)


def compared_on_images(folder: Path, data: str = "CIFAR-FS") -> dict[str, dict[str, list[Result]]]:
    """Results of Table 1 or 2 by method and column, all of the same number of iterations."""
    columns = [f"{data} 1-shot", f"{data} 5-shot"]
    spec = (table2 if data == "CIFAR-FS" else table1)(lambda data: True).select(columns=columns)
    return of_equal_length(spec, read_results(folder))


def of_equal_length(spec: TableSpec, results: Results) -> dict[str, dict[str, list[Result]]]:
    """A table's results by row and column, all of the same number of iterations."""
    results = results.in_one_precision(spec.experiments())
    length = results.common_length(spec.experiments())
    return {
        row.key: {column: results.of(row.cells[column].experiment, length) for column in spec.columns}
        for row in spec.rows
    }


def image_ranking(folder: Path) -> Table:
    """Table 2's methods on CIFAR-FS after equally many iterations, best first, and what they cost."""
    times = method_times(folder, "cifar-fs")
    ranked = []
    for name, found in compared_on_images(folder).items():
        five = found[COLUMNS[1]]
        value = mean(five, ACCURACY)[0] if five else 0.0
        seeds = " / ".join(str(len(found[column]) or NOTHING) for column in COLUMNS)
        method = METHODS[name.removesuffix("-direct")]
        level = "joint" if method.transductive else "batch"
        costs = [_ratio(times, method.name, key) for key in ("training_ms", "adaptation_ms")]
        texts = (_accuracy(found[column]) for column in COLUMNS)
        ranked.append((value, (name, method.order, level, *texts, seeds, *costs)))
    ranked.sort(key=lambda pair: -pair[0])
    header = ("method", "order", "queries", *COLUMNS, "seeds", "training / MAML", "adaptation / MAML")
    return Table.of("", header, [row for _, row in ranked])


def _accuracy(results: Sequence[Result]) -> str:
    return ACCURACY.with_interval(*mean(results, ACCURACY)) if results else NOT_RUN


def _ratio(times: dict[str, dict[str, float]], name: str, key: str) -> str:
    return f"{times[name][key] / times['maml'][key]:.2f} ×"
