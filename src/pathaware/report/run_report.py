"""An HTML report of a few runs: one file with tables, pictures and settings in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pathaware.errors import UsageError
from pathaware.report import html
from pathaware.report.comparison import Comparison
from pathaware.report.environment import environment
from pathaware.report.figures import figures
from pathaware.report.style import data_uri
from pathaware.training.run import Run


def write_report(path: Path, title: str, groups: Sequence[tuple[Comparison, Sequence[Run]]]) -> None:
    """One part for each group of runs on the same problem."""
    sections = []
    for results, runs in groups:
        drawn = figures([(run, run.load("cpu")) for run in runs])
        sections += [
            html.section(results.title, html.table(results.header, results.rows, results.best)),
            *(html.figure(data_uri(figure), caption) for _, caption, figure in drawn),
        ]
    settings = [html.preformatted(run.config.to_toml()) for _, runs in groups for run in runs]
    made = ", ".join(f"{name} {value}" for name, value in environment().items())
    sections += [html.section("Settings", *settings), html.section("Made with", f"<p>{made}</p>")]
    lead = "Trained on many small tasks, judged on tasks that were never seen."
    try:
        path.write_text(html.page(title, lead, sections), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--out: {path} cannot be written ({error.strerror})") from None
