"""An HTML report of a few runs: one file with tables, pictures and settings in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from pathaware.errors import UsageError
from pathaware.report import html
from pathaware.report.comparison import Comparison
from pathaware.report.differences import differences
from pathaware.report.environment import environment
from pathaware.report.figures import figures
from pathaware.report.looks import labels
from pathaware.report.paper import ADDRESS
from pathaware.report.record import commit
from pathaware.report.style import data_uri
from pathaware.report.tables.model import Table
from pathaware.report.training_table import training_table
from pathaware.training.run import Run

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
        raise UsageError(f"--out: {path} cannot be written ({error.strerror})") from None


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
