"""`pathaware report RUN…`: results, figures and settings of runs in one HTML file."""

from __future__ import annotations

from pathlib import Path

from pathaware.cli.options import OUTPUT, TASKS, Replace, examples, must_be_new, open_trained, panel_option
from pathaware.cli.plot import Runs
from pathaware.core.errors import UnfinishedRun

EXAMPLES = examples(
    "pathaware report runs/sine-k10-pamela-seed0",
    "pathaware report runs/sine-k10-pamela-seed0 runs/sine-k10-maml-seed0",
)
REPORT = "report.html"


def report(
    runs: Runs,
    out: Path | None = panel_option(
        None, OUTPUT, "HTML file to write.", shown="report.html in the first RUN"
    ),
    tasks: int | None = panel_option(
        None, TASKS, "Number of new tasks to evaluate on.", shown="1000 for sine, 600 for images"
    ),
    replace: Replace = False,
) -> None:
    """Write results, figures and settings to one HTML file; runs of the same problem are compared."""
    from pathaware.cli.show import print_table
    from pathaware.core.settings import at_least
    from pathaware.data.store import counted
    from pathaware.report.run_report import compare, write_report
    from pathaware.training.problems import Problem
    from pathaware.training.run_folder import Run

    at_least(1, tasks=1 if tasks is None else tasks)
    groups: dict[Problem, list[Run]] = {}
    for folder in dict.fromkeys(runs):
        run = open_trained(folder)
        if not run.finished:
            raise UnfinishedRun(folder)
        groups.setdefault(run.config.problem, []).append(run)
    path = out or runs[0] / REPORT
    # The default belongs to the run and is brought up to date.
    must_be_new("--out", path, replace or out is None)
    comparisons = []
    for problem, group in groups.items():
        comparisons.append(compare(group, problem.evaluation_tasks if tasks is None else tasks))
        print_table(comparisons[-1].results)
    names = " and ".join(problem.label for problem in groups)
    every = [run for group in groups.values() for run in group]
    what = every[0].config.method if len(every) == 1 else counted(len(every), "run")
    write_report(path, f"{what} on {names}", comparisons, within=runs[0] if out is None else None)
    print(path)
