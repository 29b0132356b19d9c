"""The tables of docs/methods.md: what methods there are, and what they reach in the same time."""

from __future__ import annotations

from pathlib import Path

from pathaware.methods import METHODS
from pathaware.report.tables.markdown import pipe_table
from pathaware.report.tables.model import Row, Table
from pathaware.reproduce.goal import Goal
from pathaware.reproduce.method_table import method_table, show
from pathaware.reproduce.results import Results


def contests() -> list[Goal]:
    """The data sets that all methods were trained on, wherever that was."""
    return [method_table(data, lambda name: True) for data in ("glyphs", "cifar-fs")]


def in_the_same_time(folder: Path) -> dict[str, str]:
    """A table for each data set, by the name of the set."""
    found = {}
    for goal in contests():
        trials = goal.trials()
        table = show(goal, Results.read(folder, [trial.name for trial in trials]))
        found[str(trials[0].tables["problem"]["data"])] = pipe_table(table)
    return found


def methods_page(folder: Path) -> dict[str, str]:
    rows = [
        Row((f"`{m.name}`", m.summary, m.order, "queries" if m.queries else "batch norm", m.paper))
        for m in METHODS.values()
    ]
    header = ("method", "what it does", "order", "transductive by", "paper")
    return {"list": pipe_table(Table("", header, rows)), **in_the_same_time(folder)}
