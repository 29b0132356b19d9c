"""Makes the tables and figures of the paper: train what is missing, show what is there."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pathaware.core.errors import UsageError
from pathaware.data.catalogue import GLYPHS, IMPORTERS
from pathaware.data.store import counted
from pathaware.report.style import save
from pathaware.report.table_files import write_table
from pathaware.sweep.run_store import PlannedRun
from pathaware.training.progress import duration
from pathaware.training.provenance import environment, write_record
from pathaware.training.tables import Table
from pathaware_research.experiments import Experiment, RunStore, experiment_key
from pathaware_research.paper import complexity, figures, tables
from pathaware_research.paper.method_table import method_table, render
from pathaware_research.paper.tables import TableSpec
from pathaware_research.paper.time_estimate import RunPlanner, TrainingLength
from pathaware_research.workers import train_in_workers

TABLES: dict[str, Callable[[str], TableSpec]] = {
    "table1": lambda data: tables.table1(),
    "table2": lambda data: tables.table2(),
    "table3": lambda data: tables.table3(),
    "strict": lambda data: tables.strict(),
    "table4": tables.table4,
    "steps": tables.steps_table,
    "further": lambda data: tables.further(),
    "full": lambda data: tables.full_length(),
    "methods": method_table,
    "sine": lambda data: tables.sine_methods(),
}
COMPLEXITY = "table5"
FIGURES: dict[str, Callable[[str], figures.PaperFigure]] = {
    "fig4": lambda data: figures.fig4(),
    "fig5": lambda data: figures.fig5(),
    "fig6": figures.fig6,
    "gradients": lambda data: figures.gradients(),
    "gradients-conv4": figures.gradients_conv4,
}
TARGETS = (*TABLES, COMPLEXITY, *FIGURES)


def check_data(data: str) -> None:
    """Refuse a data set that is not imported and has no importer."""
    known = (GLYPHS, *IMPORTERS)
    if data not in known and not tables.is_imported(data):
        raise UsageError(
            f"{data!r} must be one of {', '.join(known)}, or a data set that was imported", field="data"
        )


def data_to_import(
    target: str, data: str, rows: Sequence[str] = (), columns: Sequence[str] = ()
) -> list[str]:
    """The data sets that these cells of a table need and that are not imported."""
    if target not in TABLES:
        return []
    chosen = TABLES[target](data).select(rows, columns)
    cells = [cell for row in chosen.rows for cell in row.cells.values() if "imported" in cell.reason]
    return list(dict.fromkeys(cell.experiment.tables["problem"]["data"] for cell in cells))


def _check_choice(target: str, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse rows and columns for targets that are not tables of trained runs."""
    for chosen, what, name in ((rows, "rows", "only"), (columns, "columns", "columns")):
        if chosen and target not in TABLES:
            raise UsageError(f"{target} has no {what} to choose from", field=name)


@dataclass(frozen=True)
class Reproduction:
    """Makes targets from the runs of a store and writes them to `out`.

    `length` is for each target, `settings` replace those of every run, `say` gets progress lines. Without
    `train` only what is there is shown. Runs are trained one after another; or `at_once` of them in this
    process, which share a GPU; or in as many `workers`, processes that share the CPU or the GPUs.
    """

    store: RunStore
    out: Path
    say: Callable[[str], None]
    seeds: int = 1
    length: TrainingLength = field(default_factory=TrainingLength)
    at_once: int = 1
    workers: int = 1
    train: bool = True
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def make(
        self, target: str, data: str, rows: Sequence[str] = (), columns: Sequence[str] = ()
    ) -> Table | None:
        """Write the files of a target; return the table if it is one."""
        _check_choice(target, rows, columns)
        if self.train and target != COMPLEXITY:
            planner = RunPlanner(self.store, self.workers)
            self._train(target, planner, *self._plan(planner, target, data, rows, columns))
        if target in FIGURES:
            self._figure(FIGURES[target](data))
            return None
        if target == COMPLEXITY:
            table = self._complexity()
        else:
            spec = self._spec(target, data)
            results = self.store.results(spec.experiments() if spec.equal_time else ())
            table = render(spec.select(rows, columns), results)
        for path in write_table(table, self.out, target):
            self.say(str(path))
        return table

    def train_at_once(
        self, targets: Sequence[str], data: str, rows: Sequence[str] = (), columns: Sequence[str] = ()
    ) -> None:
        """Train what several targets lack in one pool, so that no worker waits for the last run of a target.

        A budget is for each target, so with one, and without workers, each target trains its own runs.
        """
        if not self.train or self.workers == 1 or len(targets) == 1 or self.length.budget is not None:
            return
        planner = RunPlanner(self.store, self.workers)
        cells, runs = list[Experiment](), dict[str, PlannedRun]()
        trained = set[object]()
        for target in targets:
            if target == COMPLEXITY:
                continue
            with suppress(UsageError):  # `make` says why a target cannot be made
                _check_choice(target, rows, columns)
                experiments, missing, _ = self._plan(planner, target, data, rows, columns)
                cells += experiments
                for run in missing:
                    training = run.config.training
                    key = experiment_key(run.config), training.seed, training.iterations
                    # Tables find a training under any name, figures under their own.
                    if key not in trained or target in FIGURES:
                        runs[run.name] = run
                    trained.add(key)
        if runs:
            self._train(" and ".join(targets), planner, cells, list(runs.values()), self.length)

    def _plan(
        self, planner: RunPlanner, target: str, data: str, rows: Sequence[str], columns: Sequence[str]
    ) -> tuple[list[Experiment], list[PlannedRun], TrainingLength]:
        """The experiments of a target, the runs that it lacks, and how long they are."""
        if target in FIGURES:
            experiments = self._drawn(FIGURES[target](data))
            # A record is not enough: a figure needs the network.
            missing = [e for e in experiments if self.store.trained(e) is None]
            return experiments, planner.anew(missing, self.length), self.length
        spec = self._spec(target, data)
        experiments, length = spec.select(rows, columns).available(), self._length(spec)
        return experiments, planner.missing(experiments, length, self.seeds), length

    def _spec(self, target: str, data: str) -> TableSpec:
        return TABLES[target](data).with_settings(self.settings)

    def _drawn(self, figure: figures.PaperFigure) -> list[Experiment]:
        return [experiment.with_settings(self.settings) for experiment in figure.experiments]

    def _length(self, spec: TableSpec) -> TrainingLength:
        length = replace(self.length, equal_iterations=spec.equal_iterations, equal_time=spec.equal_time)
        if spec.iterations is None:
            return length
        if length.iterations not in (None, spec.iterations):
            raise UsageError(f"the runs of {spec.name} have {spec.iterations:,}", field="iterations")
        return replace(length, iterations=spec.iterations)

    def _train(
        self,
        name: str,
        planner: RunPlanner,
        cells: Sequence[Experiment],
        runs: Sequence[PlannedRun],
        length: TrainingLength,
    ) -> None:
        """Train `runs`; say after each how many of the `cells` are done, and how much time is left."""
        if not runs:
            self.say(f"{name}: nothing to train")
            return
        missing = runs
        if length.iterations is not None and length.budget is not None:
            runs = planner.within(missing, length.budget)
        elif self.workers > 1:
            runs = planner.longest_first(missing)
        estimated, started = planner.seconds(runs), time.perf_counter()
        count = counted(len(runs), "run")
        beyond = f"; {len(missing) - len(runs)} more do not fit" if len(runs) < len(missing) else ""
        how = (
            "if one after another"
            if self.workers == 1
            else f"in {self.workers} processes, which take some seconds to start"
        )
        self.say(f"{name}: {count} to train, about {duration(estimated)} {how}{beyond}")
        keys, left = [experiment_key(cell.config()) for cell in cells], list(runs)
        unit = "cells" if name in TABLES else "runs"

        def time_left() -> str:
            remaining = planner.seconds(left)
            spent, expected = time.perf_counter() - started, estimated - remaining
            # Estimates are corrected by how long the runs took so far.
            remaining *= spent / expected if expected > 0 else 1.0
            return f"about {duration(remaining)} left"

        def on_done(run: PlannedRun) -> None:
            left.remove(run)
            unfinished = [each for each in missing if each in left or each not in runs]
            pending = Counter(experiment_key(each.config) for each in unfinished)
            done = sum(not pending[key] for key in keys)
            line = f"{run.name}: done; {done} of {len(keys)} {unit} of {name}"
            self.say(f"{line}, {time_left()}" if left else line)

        if self.workers == 1:
            self.store.train(runs, self.at_once, on_done)
        else:
            train_in_workers(self.store, runs, self.workers, self.say, on_done, time_left)

    def _complexity(self) -> Table:
        """Times are those of one machine: this one's, or another's if nothing may be measured."""
        device = environment()["device"].lower().replace(" ", "-")
        path = self.store.results_folder / f"complexity-{device}.json"
        if not path.exists() and self.train:
            write_record(path, complexity.measure())
        elif not path.exists():
            others = sorted(self.store.results_folder.rglob("complexity-*.json"))
            if not others:
                raise UsageError(f"{COMPLEXITY}: {path} does not exist; it is measured when training is on")
            path = others[0]
        return complexity.table5(json.loads(path.read_text(encoding="utf-8")))

    def _figure(self, figure: figures.PaperFigure) -> None:
        experiments = self._drawn(figure)
        trained = [run for e in experiments if (run := self.store.trained(e)) is not None]
        if not trained:
            raise UsageError(f"{figure.name}: none of its runs has been trained")
        for name, drawn in figure.draw(trained, self.store.results_folder):
            for suffix in ("svg", "png"):
                self.say(str(save(drawn, self.out / f"{name}.{suffix}")))
