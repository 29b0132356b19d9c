"""From a target's name to its files: train what is missing, show what there is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pathaware.core.errors import UsageError
from pathaware.experiments.paper import complexity, figures, method_table
from pathaware.experiments.paper import tables as ablation
from pathaware.experiments.paper import tables as image_tables
from pathaware.experiments.paper import tables as sine_table
from pathaware.experiments.paper.method_table import render
from pathaware.experiments.paper.tables import Goal, Line, Trial
from pathaware.experiments.paper.time_estimate import spoken
from pathaware.experiments.report.style import save
from pathaware.experiments.report.table_files import write_measurements, write_table
from pathaware.experiments.run_store import Length, Order, Workshop
from pathaware.training.provenance import environment
from pathaware.training.tables import Table

TABLES: dict[str, Callable[[str], Goal]] = {
    "table1": lambda data: image_tables.table1(),
    "table2": lambda data: image_tables.table2(),
    "table3": lambda data: sine_table.table3(),
    "table4": ablation.table4,
    "methods": method_table.method_table,
}
COMPLEXITY = "table5"
PICTURES: dict[str, Callable[[str], figures.PaperFigure]] = {
    "fig4": lambda data: figures.fig4(),
    "fig5": lambda data: figures.fig5(),
    "fig6": figures.fig6,
    "gradients": lambda data: figures.gradients(),
}
TARGETS = (*TABLES, COMPLEXITY, *PICTURES)


@dataclass(frozen=True)
class Maker:
    """Makes targets in the folder of a workshop.

    `length` is for each target, `settings` are laid over those of every run, `say` hears what goes on.
    Without `train` only what is there is shown.
    """

    workshop: Workshop
    out: Path
    say: Callable[[str], None]
    seeds: int = 1
    length: Length = field(default_factory=Length)
    together: int = 1
    train: bool = True
    settings: Mapping[str, Mapping[str, Any]] | None = None

    def make(self, target: str, data: str, only: Sequence[str] = ()) -> Table | None:
        """The table, if it is one; its files and figures are in `out`."""
        if only and target not in TABLES:
            raise UsageError(f"{target} has no rows to choose from", field="only")
        if target == COMPLEXITY:
            table = self._complexity()
        elif target in TABLES:
            table = self._table(TABLES[target](data), only)
        else:
            self._picture(PICTURES[target](data))
            return None
        for path in write_table(table, self.out, target):
            self.say(str(path))
        return table

    def _table(self, goal: Goal, only: Sequence[str]) -> Table:
        goal = replace(goal, lines=[self._line(line) for line in goal.lines])
        chosen = _chosen(goal, only)
        possible = [p.trial for line in chosen for p in line.places.values() if not p.reason]
        self._train(goal.name, possible, replace(self.length, equal=goal.equal, timed=goal.timed))
        results = self.workshop.results(goal.trials() if goal.timed else ())
        shown = method_table.show if goal.timed else render
        return shown(replace(goal, lines=chosen), results)

    def _line(self, line: Line) -> Line:
        places = {
            column: replace(place, trial=place.trial.changed(self.settings or {}))
            for column, place in line.places.items()
        }
        return replace(line, places=places)

    def _train(self, name: str, trials: Sequence[Trial], length: Length) -> None:
        if self.train:
            self._make(name, self.workshop.orders(trials, length, self.seeds))

    def _make(self, name: str, orders: Sequence[Order]) -> None:
        if not orders:
            self.say(f"{name}: nothing to train")
            return
        left = spoken(self.workshop.seconds(orders))
        runs = "1 run" if len(orders) == 1 else f"{len(orders)} runs"
        self.say(f"{name}: {runs} to train, about {left} if one after another")
        self.workshop.make(orders, self.together, self.say)

    def _complexity(self) -> Table:
        """Timings are of a machine: measured once on this one, or, where nothing is measured, another's."""
        device = environment()["device"].lower().replace(" ", "-")
        path = self.workshop.records / f"complexity-{device}.json"
        others = sorted(self.workshop.records.glob("complexity-*.json"))
        if not path.exists() and not self.train:
            if not others:
                raise UsageError(f"table5: {path} is not there; it is measured without --no-train")
            path = others[0]
        if not path.exists():
            write_measurements(path, complexity.measure())
        return complexity.table5(json.loads(path.read_text(encoding="utf-8")))

    def _picture(self, picture: figures.PaperFigure) -> None:
        trials = [trial.changed(self.settings or {}) for trial in picture.trials]
        if self.train:
            # A record is not enough: a figure needs the network.
            missing = [trial for trial in trials if self.workshop.trained(trial) is None]
            self._make(picture.name, self.workshop.afresh(missing, self.length))
        runs = [run for trial in trials if (run := self.workshop.trained(trial)) is not None]
        if not runs:
            raise UsageError(f"{picture.name}: none of its runs is there")
        for name, figure in picture.draw(runs, self.workshop.records):
            for ending in ("svg", "png"):
                self.say(str(save(figure, self.out / f"{name}.{ending}")))


def _chosen(goal: Goal, only: Sequence[str]) -> list[Line]:
    known = [line.key for line in goal.lines]
    for key in only:
        if key not in known:
            raise UsageError(f"{key!r} is no row of {goal.name}; it has {', '.join(known)}", field="only")
    return [line for line in goal.lines if not only or line.key in only]
