"""Runs on the same problem side by side, and beside what the paper printed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from pathaware.core.errors import UsageError
from pathaware.experiments.paper.printed import ADDRESS, image_accuracy, sine_mse
from pathaware.experiments.report import html
from pathaware.experiments.report.figures import figures
from pathaware.experiments.report.style import data_uri, labels
from pathaware.training.evaluation import evaluate
from pathaware.training.metric import ACCURACY, Metric
from pathaware.training.problems import Classification, Sine
from pathaware.training.provenance import commit, environment
from pathaware.training.run_folder import Run
from pathaware.training.tables import NOTHING, Remark, Row, Table


@dataclass(frozen=True)
class Comparison:
    """Runs with what they reached, and how they came there step by step."""

    runs: Sequence[Run]
    tasks: int
    results: Table
    steps: Table


def compare(runs: Sequence[Run], tasks: int) -> Comparison:
    """Every run on the same new tasks."""
    problem = runs[0].config.problem
    found = [evaluate(run.load(), problem, tasks=tasks).summary() for run in runs]
    metric = problem.metric
    best = metric.best(summary[metric.name] for summary in found)
    rows = [
        Row(_cells(name, run, summary), emphasis=len(runs) > 1 and summary[metric.name] == best)
        for name, run, summary in zip(labels(runs), runs, found, strict=True)
    ]
    header = ("run", "before", "after", "worst task", "put back", "the paper")
    title = f"{problem.label}: {metric.title}"
    results = Table(title, header, rows, _notes(found[0], metric))
    return Comparison(runs, tasks, results, _per_step(labels(runs), found, metric))


def _cells(name: str, run: Run, summary: dict[str, Any]) -> tuple[str, ...]:
    metric = run.config.problem.metric
    return (
        name,
        metric.format(summary[f"{metric.name}_per_step"][0]),
        metric.with_interval(summary[metric.name], summary[f"{metric.name}_ci95"]),
        metric.format(summary[metric.worst_key]),
        f"{100 * summary['reverted']:.2f} %" if run.config.training.guard else Remark("no guard"),
        printed(run),
    )


def _per_step(names: Sequence[str], found: Sequence[dict[str, Any]], metric: Metric) -> Table:
    paths = [summary[f"{metric.name}_per_step"] for summary in found]
    most = max(map(len, paths))
    rows = [
        Row((name, *map(metric.format, path), *[NOTHING] * (most - len(path))))
        for name, path in zip(names, paths, strict=True)
    ]
    return Table(f"After each inner step: {metric.title}", ("run", *map(str, range(most))), rows)


def _notes(summary: dict[str, Any], metric: Metric) -> list[str]:
    """How it was evaluated."""
    notes = [
        f"Before and after adapting to {summary['tasks']:,} new tasks of the {summary['split']} split, the "
        "same for every run: means, with 95 % intervals.",
        "Put back: tasks that the guard returned to an earlier point of their path.",
    ]
    if metric is ACCURACY:
        kind = "all queries of a task" if summary["transductive"] else "the support set"
        name = "Transductive" if summary["transductive"] else "Inductive"
        notes.append(f"{name}: batch norm judges queries with the statistics of {kind}.")
    return notes


def printed(run: Run) -> str:
    """The paper's number for this problem and method, or a dash."""
    problem = run.config.problem
    if isinstance(problem, Sine):
        return sine_mse(problem.shots, run.config.method)
    if isinstance(problem, Classification):
        return image_accuracy(problem.data, problem.ways, problem.shots, run.config.method)
    return NOTHING


# The settings in which runs differ.


def differences(runs: Sequence[Run]) -> Table:
    """A row for each such setting; a dash where a method has no such setting."""
    settings = [
        {
            f"{table}.{key}": _shown(v)
            for table, values in run.config.to_dict().items()
            for key, v in values.items()
        }
        for run in runs
    ]
    names = dict.fromkeys(name for each in settings for name in each)
    lines = [[name, *(each.get(name, NOTHING) for each in settings)] for name in names]
    return Table.of(
        "Where they differ", ["setting", *labels(runs)], [line for line in lines if len(set(line[1:])) > 1]
    )


def _shown(value: object) -> str:
    """As the configuration file has it, without quotes."""
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


# What training took.


def training_table(runs: Sequence[Run]) -> Table:
    """Time, memory where a GPU held it, and meta-gradients that were not finite and so not followed."""
    lines = [
        [name, *_training_cells(list(run.metrics()))] for name, run in zip(labels(runs), runs, strict=True)
    ]
    return Table.of("Training", ["run", "iterations", "minutes", "GPU memory, MB", "skipped"], lines)


def _training_cells(rows: list[dict[str, Any]]) -> list[str]:
    memory = rows[-1].get("memory_mb")
    return [
        f"{rows[-1]['iteration']:,}",
        f"{rows[-1]['seconds'] / 60:.1f}",
        NOTHING if memory is None else f"{memory:,.0f}",
        str(sum(row["skipped"] for row in rows)),
    ]


# An HTML report of a few runs: one file with tables, pictures and settings in it.


BROAD = 1.8  # times as wide as high: too small to read in half of a page


def write_report(path: Path, title: str, groups: Sequence[Comparison]) -> None:
    """One part for each group of runs on the same problem."""
    names = [(f"part-{i}", group.results.title) for i, group in enumerate(groups, 1)]
    sections = [html.contents(names)] if len(groups) > 1 else []
    sections += [
        html.section(name, *_part(group), anchor=anchor)
        for (anchor, name), group in zip(names, groups, strict=True)
    ]
    sections.append(html.section("Environment", *_environment()))
    lead = "Trained on many small tasks, judged on tasks that were never seen."
    try:
        path.write_text(html.page(title, lead, sections), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror})", field="out") from None


def _part(group: Comparison) -> Iterator[str]:
    yield html.table(group.results)
    yield html.subsection(group.steps.title, html.table(group.steps))
    drawn = figures(group.runs, min(100, group.tasks))
    yield html.figures(_figure(caption, figure) for _, caption, figure in drawn)
    training = training_table(group.runs)
    yield html.subsection(training.title, html.table(training))
    yield html.subsection("Settings", *_settings(group.runs))


def _figure(caption: str, figure: Figure) -> str:
    width, height = figure.get_size_inches()
    return html.figure(data_uri(figure), caption, broad=bool(width > BROAD * height))


def _settings(runs: Sequence[Run]) -> Iterator[str]:
    """What tells the runs apart, then all of it for those who open it."""
    different = differences(runs)
    if different.rows:
        yield html.table(different)
    for name, run in zip(labels(runs), runs, strict=True):
        yield html.folded(f"all settings of {name}", run.config.to_toml())


def _environment() -> Iterator[str]:
    made = environment() | {"commit": (commit() or "unknown")[:12]}
    yield html.table(Table.of("", ["evaluated with", ""], made.items()))
    yield f'<p class="note">The paper: {html.link(ADDRESS, "Rajasegaran et al., 2020")}</p>'
