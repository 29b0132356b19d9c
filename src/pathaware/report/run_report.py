"""`pathaware report`: runs on the same problem compared with each other and with the paper, as HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathaware.core.errors import UsageError
from pathaware.core.writing import replace_file
from pathaware.data.store import counted
from pathaware.report.figures import figures
from pathaware.report.paper_numbers import ADDRESS, paper_result
from pathaware.report.style import data_uri, labels
from pathaware.report.table_files import render_html
from pathaware.training.config import format_value
from pathaware.training.evaluation import LEVEL_TITLES, evaluate
from pathaware.training.metric import ACCURACY, Metric
from pathaware.training.progress import ProgressDisplay
from pathaware.training.provenance import environment, revision
from pathaware.training.run_folder import Run
from pathaware.training.tables import NOTHING, Remark, Row, Table

BROAD = 1.8
"""Figures with a larger aspect ratio take the full width of the page."""


@dataclass(frozen=True)
class Comparison:
    """Runs on the same problem, their results on `tasks` test tasks, and their results after every step."""

    runs: Sequence[Run]
    tasks: int
    results: Table
    steps: Table


def compare(runs: Sequence[Run], tasks: int) -> Comparison:
    """Evaluate every run on the same test tasks."""
    problem = runs[0].config.problem
    metric = problem.metric
    summaries = []
    for run in runs:
        title = f"{run.config.method} on {problem.label}, evaluation"
        with ProgressDisplay(title, tasks, transient=True) as display:
            found = evaluate(run.load(), problem, tasks=tasks, progress=display.count)
        summaries.append(found.summary())
    best = metric.best(summary[metric.name] for summary in summaries)
    rows = [
        Row(_cells(name, run, summary), emphasis=len(runs) > 1 and summary[metric.name] == best)
        for name, run, summary in zip(labels(runs), runs, summaries, strict=True)
    ]
    header = ("run", "before", "after", "worst task", "reverted", "the paper")
    results = Table(f"{problem.label}: {metric.title}", header, rows, _notes(labels(runs), summaries, metric))
    return Comparison(runs, tasks, results, _per_step(labels(runs), summaries, metric))


def _cells(name: str, run: Run, summary: dict[str, Any]) -> tuple[str, ...]:
    metric = run.config.problem.metric
    return (
        name,
        metric.format(summary[f"{metric.name}_per_step"][0]),
        metric.with_interval(summary[metric.name], summary[f"{metric.name}_ci95"]),
        metric.format(summary[metric.worst_key]),
        f"{100 * summary['reverted']:.2f} %" if run.config.training.guard else Remark("no guard"),
        paper_result(run.config.problem.paper_key, run.config.method),
    )


def _per_step(names: Sequence[str], summaries: Sequence[dict[str, Any]], metric: Metric) -> Table:
    paths = [summary[f"{metric.name}_per_step"] for summary in summaries]
    most = max(map(len, paths))
    rows = [
        Row((name, *map(metric.format, path), *[NOTHING] * (most - len(path))))
        for name, path in zip(names, paths, strict=True)
    ]
    return Table(f"After each inner step: {metric.title}", ("run", *map(str, range(most))), rows)


def _notes(names: Sequence[str], summaries: Sequence[dict[str, Any]], metric: Metric) -> list[str]:
    """How the runs were evaluated."""
    summary = summaries[0]
    notes = [
        f"Before and after adaptation. Evaluated on {counted(summary['tasks'], 'new task')} of the "
        f"{summary['split']} split, the same for every run; means with 95 % confidence intervals.",
        "Reverted: tasks that the divergence guard returned to an earlier point of their path.",
    ]
    if metric is ACCURACY:
        levels = [LEVEL_TITLES[each["queries"]] for each in summaries]
        same = len(set(levels)) == 1
        each = levels[:1] if same else [f"{n} {level}" for n, level in zip(names, levels, strict=True)]
        notes.append(f"Level of transduction: {'; '.join(each)}.")
    return notes


def differences(runs: Sequence[Run]) -> Table:
    """The settings in which runs differ; a dash if a method does not have the setting."""
    settings = [
        {
            f"{table}.{key}": format_value(value)
            for table, values in run.config.to_dict().items()
            for key, value in values.items()
        }
        for run in runs
    ]
    names = dict.fromkeys(name for each in settings for name in each)
    lines = [[name, *(each.get(name, NOTHING) for each in settings)] for name in names]
    different = [line for line in lines if len(set(line[1:])) > 1]
    return Table.of("Settings that differ", ["setting", *labels(runs)], different)


def training_table(runs: Sequence[Run]) -> Table:
    """Training time, GPU memory, and the number of updates skipped for non-finite meta-gradients."""
    lines = []
    for name, run in zip(labels(runs), runs, strict=True):
        rows = list(run.metrics())
        last, memory = rows[-1], rows[-1].get("memory_mb")
        megabytes = NOTHING if memory is None else f"{memory:,.0f}"
        skipped = str(sum(row["skipped"] for row in rows))
        lines.append([name, f"{last['iteration']:,}", f"{last['seconds'] / 60:.1f}", megabytes, skipped])
    return Table.of("Training", ["run", "iterations", "minutes", "GPU memory, MB", "skipped updates"], lines)


def write_report(path: Path, title: str, groups: Sequence[Comparison], within: Path | None = None) -> None:
    """Write one HTML file with a section per group of runs on the same problem."""
    about = environment() | {"commit": (revision()["commit"] or "unknown")[:12]}
    page = render_html(
        title=title,
        lead="Trained on many small tasks, evaluated on tasks that were not seen in training.",
        parts=[_section(group) for group in groups],
        environment=Table.of("", ["evaluated with", ""], about.items()),
        address=ADDRESS,
    )
    try:
        replace_file(path, page, within)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror})", field="out") from None


def _section(group: Comparison) -> dict[str, Any]:
    return {
        "results": group.results,
        "steps": group.steps,
        "figures": list(_figures(group)),
        "training": training_table(group.runs),
        "differences": differences(group.runs),
        "settings": [
            (n, run.config.to_toml()) for n, run in zip(labels(group.runs), group.runs, strict=True)
        ],
    }


def _figures(group: Comparison) -> Iterator[dict[str, Any]]:
    for _, caption, figure in figures(group.runs, min(100, group.tasks)):
        width, height = figure.get_size_inches()
        yield {"caption": caption, "broad": width > BROAD * height, "uri": data_uri(figure)}
