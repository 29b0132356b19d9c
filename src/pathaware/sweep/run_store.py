"""A folder of runs: open or create, train, evaluate and record them, and find the records again.

A `PlannedRun` is a run that is to be made, and a `RunStore` holds those that were made.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pathaware.core.errors import UsageError
from pathaware.core.reading import read_file
from pathaware.core.writing import make_folder
from pathaware.methods import get_method
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate
from pathaware.training.loop import Fit
from pathaware.training.meta_training import MetaTraining
from pathaware.training.metric import Metric
from pathaware.training.provenance import evaluation_record, identity, write_record
from pathaware.training.run_files import CONFIG, FolderInUse
from pathaware.training.run_folder import Run

IDENTITY = "identity"
"""Key of a record; records written before it existed do not have it."""


@dataclass(frozen=True)
class PlannedRun:
    """One run. `name` is for folders and files; `settings` are those that a sweep varies, by full name."""

    name: str
    config: Config
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """The record of an evaluated run."""

    record: dict[str, Any]

    def value(self, metric: Metric) -> tuple[float, float]:
        """The metric and the half-width of its 95 % interval."""
        result = self.record["result"]
        return result[metric.name], result[f"{metric.name}_ci95"]

    @cached_property
    def config(self) -> Config:
        return Config.of_run(self.record["config"])

    @property
    def identity(self) -> dict[str, Any]:
        """The value of `identity` when the run was trained."""
        return stored_identity(self.record, self.config)


def stored_identity(record: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """The `identity` of a record. Older ones have none; versions of methods began with 1."""
    known = record.get(IDENTITY, {**identity(config), "method_version": 1})
    return {**known, "method_version": get_method(config.method).same_numbers(known["method_version"])}


@dataclass(frozen=True)
class RunStore:
    """`runs/NAME`, `results/NAME.json` and `logs/NAME.log` in a folder.

    A run that was stopped is resumed, one that was trained but not evaluated is evaluated, and one that has a
    record is left alone. Evaluation is on `tasks` tasks of `split`, by default as many as the problem says.
    The names of records end with `suffix`.
    """

    folder: Path
    tasks: int | None = None
    split: str = "test"
    suffix: str = ""

    @property
    def results_folder(self) -> Path:
        return self.folder / "results"

    def same(self, there: Config, wanted: Config) -> bool:
        """True if a run that is there may stand for the wanted one."""
        return there == wanted

    def run_folder(self, planned: PlannedRun) -> Path:
        return self.folder / "runs" / planned.name

    def record_path(self, planned: PlannedRun) -> Path:
        return self.results_folder / f"{planned.name}{self.suffix}.json"

    def evaluation_tasks(self, config: Config) -> int:
        return self.tasks or config.problem.evaluation_tasks

    def create(self) -> None:
        try:
            for folder in (self.folder / "runs", self.results_folder, self.folder / "logs"):
                make_folder(folder)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"{self.folder} cannot be written ({reason})", field="out") from None

    def check_settings(self, planned: PlannedRun) -> None:
        """Refuse a run folder of other settings, or of another version of the method."""
        folder, wanted = self.run_folder(planned), planned.config
        if not (folder / CONFIG).exists():
            return
        there = Run.open(folder).config
        if not self.same(there, wanted):
            what = "a run of other settings"
        elif (record := self._record(planned)) and stored_identity(record, wanted) != identity(wanted):
            what = f"a run of another version of {wanted.method}"
        else:
            return
        raise UsageError(f"{folder} holds {what}; name a new folder or remove it", field="out")

    def open(self, planned: PlannedRun) -> Run:
        """The run in its folder, which is created if it is not there."""
        self.check_settings(planned)
        folder = self.run_folder(planned)
        if (folder / CONFIG).exists():
            return Run.open(folder)
        MetaTraining(planned.config).try_out()
        return Run.create(folder, planned.config)

    def complete(self, planned: PlannedRun, stopped: Callable[[], bool], patience: float = 0.0) -> bool:
        """Train, evaluate and record one run; False if it was stopped, in which case its state is saved.

        `stopped` is asked after every iteration. A process that still has the run open is waited for, for
        `patience` seconds.
        """
        run = self.open(planned)
        if run.finished:
            run.tidy()
        else:
            with _once_free(run, patience) as fit:
                while not fit.done:
                    if stopped():
                        fit.save()
                        return False
                    fit.advance()
        self.evaluate(planned, run)
        return True

    def evaluate(self, planned: PlannedRun, run: Run) -> None:
        """Evaluate a trained run on the device that its configuration names, and write the record."""
        problem, path = run.config.problem, self.record_path(planned)
        learner = run.load(planned.config.training.device)
        result = evaluate(learner, problem, split=self.split, tasks=self.evaluation_tasks(run.config))
        write_record(path, evaluation_record(run, result))

    def result(self, planned: PlannedRun) -> Result | None:
        """The result of exactly this run, evaluated as this store does; None without an intact record."""
        record = self._record(planned)
        try:
            asked = (planned.config.to_dict(), self.evaluation_tasks(planned.config))
            # Records of earlier versions lack settings that are newer; these have their defaults.
            if (Config.of_run(record["config"]).to_dict(), record["result"]["tasks"]) != asked:
                return None
            result = Result(record)
        except (ValueError, KeyError, TypeError):
            return None
        return result if result.identity == identity(planned.config) else None

    def _record(self, planned: PlannedRun) -> dict[str, Any]:
        try:
            record = json.loads(read_file(self.record_path(planned)))
        except (OSError, ValueError, RecursionError):
            return {}
        return record if isinstance(record, dict) else {}


def _once_free(run: Run, patience: float) -> Fit:
    """The training of a run, once a process that is stopping or was killed elsewhere releases it."""
    deadline = time.monotonic() + patience
    objective = MetaTraining(run.config)
    while True:
        try:
            return Fit(objective, run)
        except FolderInUse:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.5)
