"""Output of the commands: tables, evaluations, and commands to copy."""

from __future__ import annotations

import json as jsonlib
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pathaware.core.reading import read_file
from pathaware.data.store import counted
from pathaware.training.evaluation import LEVEL_TITLES, Evaluation
from pathaware.training.metric import ACCURACY, Metric
from pathaware.training.refinement import JOINT
from pathaware.training.run_files import CONFIG
from pathaware.training.run_folder import Run
from pathaware.training.tables import Table


def print_evaluation(
    run: Run, evaluation: Evaluation, *, json: bool, more: Mapping[str, Any] | None = None
) -> None:
    """Print a table, or one JSON object for scripts, with what `more` was measured of the predictions."""
    summary, more = evaluation.summary(), more or {}
    if json:
        about = {"method": run.config.method, "problem": run.config.problem.name}
        other = evaluation.other_tasks(run.config.problem)
        evaluated = {"evaluated": other} if other else {}
        print(jsonlib.dumps({**about, **evaluated, **summary, **more}))
        return
    metric = evaluation.metric
    steps = summary[f"{metric.name}_per_step"]
    print_table(
        Table.of(
            "",
            ["after step", *map(str, range(len(steps)))],
            [[metric.name, *(f"{value:.4f}" for value in steps)]],
        )
    )
    other = evaluation.other_tasks(run.config.problem)
    print(headline(summary, metric, f" of {evaluation.problem.label}" if other else ""))
    for name, found in more.get("baselines", {}).items():
        print(f"{name}: {metric.name} {_with_interval(found, metric.name)}")
    if "calibration_error" in more:
        print(confidence(more))
    if "open_set" in more:
        _print_open_set(more["open_set"])


def _with_interval(summary: Mapping[str, Any], name: str) -> str:
    """A mean over tasks and its 95 % interval; one task has none."""
    interval = f" ± {summary[f'{name}_ci95']:.4f}" if summary["tasks"] > 1 else ""
    return f"{summary[name]:.4f}{interval}"


def confidence(more: Mapping[str, Any]) -> str:
    """The calibration error in one sentence."""
    text = f"expected calibration error {100 * more['calibration_error']:.2f} %"
    if "calibrated_error" in more:
        text += f", {100 * more['calibrated_error']:.2f} % with the temperature {more['temperature']:.3g}"
    return text


def _print_open_set(found: Mapping[str, Any]) -> None:
    names = list(found["auroc"])
    numbers = ([f"{found[key][name]:.4f}" for key in ("auroc", "fpr95")] for name in names)
    rows = [[name, *each] for name, each in zip(names, numbers, strict=True)]
    print_table(Table.of("", ["score of foreign images", "AUROC", "FPR at 95 %"], rows))
    for row in found["refused"].get("distance", ()):
        known, foreign = (
            f"{100 * row[who]:.1f}{f' ± {100 * interval:.1f}' if found['tasks'] > 1 else ''} %"
            for who, interval in ((who, row[f"{who}_ci95"]) for who in ("known", "foreign"))
        )
        print(f"unknown {row['asked']:g}: {known} of known and {foreign} of foreign images are refused")


def print_table(content: Table) -> None:
    """Draw a table on a terminal; print Markdown to files and pipes."""
    if not sys.stdout.isatty():
        from pathaware.training.tables import markdown

        print(markdown(content))
        return
    from rich.console import Console
    from rich.table import Table as Lines
    from rich.text import Text

    lines = Lines(title=content.title)
    for name, number in zip(content.header, content.numeric, strict=True):
        lines.add_column(name, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for group in content.groups:
        for row in group:
            lines.add_row(*map(Text, row.cells), style="bold" if row.emphasis else None)
        lines.add_section()
    Console().print(lines)


CENTRED = "features centred over the queries (transductive)"


def headline(summary: dict[str, Any], metric: Metric, which: str = "") -> str:
    """The result in one sentence, with split, guard and level; `which` says what tasks, if not as trained."""
    name, worst = metric.name, summary[metric.worst_key]
    text = (
        f"{name} {_with_interval(summary, name)} over {counted(summary['tasks'], summary['split'] + ' task')}"
    )
    text += f"{which}, worst {worst:.3g}, "
    text += f"{100 * summary['reverted']:.2f} % of tasks reverted by the divergence guard"
    if metric is ACCURACY:
        level = LEVEL_TITLES[summary["queries"]]
        text += f", {CENTRED if summary['refine'] == 'centre' else level}"
        text += ", classes unbalanced" if summary["balance"] != "balanced" else ""
        text += ", mean over mirrored views" if summary["views"] == "mirror" else ""
        text += ", queries pseudo-labelled" if summary["refine"] in JOINT else ""
        text += f", mean of {summary['snapshots']} snapshots" if summary["snapshots"] > 1 else ""
    return text


def command_line(*words: str | Path, modules: Sequence[str] = ()) -> str:
    """A command to copy: `pathaware` and these words, with what it needs to load the code of `modules`."""
    line = " ".join(["pathaware", *(shlex.quote(str(word)) for word in words)])
    return f"PATHAWARE_TRUST={','.join(modules)} python -m {line}" if modules else line


def plugin_modules(folder: Path) -> list[str]:
    """The modules of your own that a run uses, such as that of its method, read from its configuration."""
    try:
        tables = tomllib.loads(read_file(folder / CONFIG).decode())
    except (OSError, ValueError):
        return []
    nested = (table.values() if isinstance(table, dict) else [table] for table in tables.values())
    found = (re.fullmatch(r"([A-Za-z_][\w.]*):[A-Za-z_]\w*", str(value)) for each in nested for value in each)
    return sorted({match[1] for match in found if match} - {"timm"})
