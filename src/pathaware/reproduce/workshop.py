"""A folder in which trials are trained, judged and kept: what is done is not done again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathaware.report.record import write_record
from pathaware.reproduce.pace import Pace, fitting, measure
from pathaware.reproduce.results import Results
from pathaware.reproduce.trial import Trial
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate
from pathaware.training.run import Run
from pathaware.training.session import check, train_sessions


@dataclass(frozen=True)
class Order:
    """A run to be made: what, with which seed, how long."""

    trial: Trial
    seed: int
    iterations: int

    @property
    def name(self) -> str:
        return f"{self.trial.name}-{self.iterations}-seed{self.seed}"

    @property
    def config(self) -> Config:
        return self.trial.config(self.seed, self.iterations)


class Workshop:
    """`runs/` with a folder for each run, and a folder of records with a file for each.

    A run that was stopped is continued, one that was trained but not judged is judged, and one that has a
    record is left alone.
    """

    def __init__(self, folder: Path, records: Path | None = None, tasks: int | None = None) -> None:
        self.runs = folder / "runs"
        self.records = records or folder / "results"
        self.tasks = tasks
        self.paces: dict[str, Pace] = {}

    def results(self) -> Results:
        return Results.read(self.records)

    def orders(self, trials: Sequence[Trial], seeds: int, budget: float | None = None) -> list[Order]:
        """What is missing. Without a budget every trial is as long as the paper's; with one, a trial that
        was begun keeps the length it was given then, and the others share what time there is."""
        results = self.results()
        lengths = {
            t.name: t.config().training.iterations if budget is None else self._begun(t) for t in trials
        }
        if budget is not None:
            new = [t for t in trials if lengths[t.name] is None and not results.of(t)]
            if new:
                every = [t for t in new for _ in range(seeds)]
                full = [t.config().training.iterations for t in every]
                found = fitting([self.pace(t) for t in every], full, budget)
                lengths.update(zip((t.name for t in every), found, strict=True))
        orders = []
        for trial in trials:
            length = lengths[trial.name]
            done = {r.seed for r in results.of(trial, length)}
            if length is None:  # there is a record of another length and no run: with a budget, it will do
                continue
            orders += [Order(trial, seed, length) for seed in range(seeds) if seed not in done]
        return orders

    def _begun(self, trial: Trial) -> int | None:
        """The length of the run of this trial that is there, finished or not."""
        lengths = [
            int(folder.name.removeprefix(f"{trial.name}-").partition("-seed")[0])
            for folder in self.runs.glob(f"{trial.name}-[0-9]*-seed[0-9]*")
        ]
        return max(lengths, default=None)

    def pace(self, trial: Trial) -> Pace:
        if trial.name not in self.paces:
            self.paces[trial.name] = measure(trial.config())
        return self.paces[trial.name]

    def seconds(self, orders: Sequence[Order]) -> float:
        """How long these will take, what is done of them counted."""
        total = 0.0
        for order in orders:
            state = self._open(order).state() if (self.runs / order.name).exists() else None
            if not (self.runs / order.name).exists() or not Run.open(self.runs / order.name).finished:
                left = order.iterations - (state.iteration if state else 0)
                pace = self.pace(order.trial)
                total += pace.each * left + (0.0 if state else pace.before)
        return total

    def make(
        self, orders: Sequence[Order], together: int = 1, told: Callable[[str], None] = lambda line: None
    ) -> None:
        """Train, judge and record; `together` runs at a time, side by side."""
        self.records.mkdir(parents=True, exist_ok=True)
        for first in range(0, len(orders), together):
            group = orders[first : first + together]
            runs = [self._open(order) for order in group]
            unfinished = [run for run in runs if not run.finished]
            if unfinished:
                train_sessions(unfinished)
            for order, run in zip(group, runs, strict=True):
                self._judge(order, run)
                told(f"{order.name}: done")

    def _open(self, order: Order) -> Run:
        folder = self.runs / order.name
        if folder.exists():
            return Run.open(folder)
        check(order.config)
        return Run.create(folder, order.config)

    def _judge(self, order: Order, run: Run) -> None:
        problem = run.config.problem
        result = evaluate(run.load(), problem, tasks=self.tasks or problem.evaluation_tasks)
        write_record(self.records / f"{order.name}.json", run, result, seed=0)

    def trained(self, trial: Trial) -> Run | None:
        """The longest finished run of a trial, for figures that need the network itself."""
        found = [Run.open(f) for f in sorted(self.runs.glob(f"{trial.name}-[0-9]*-seed[0-9]*"))]
        finished = [run for run in found if run.finished]
        return max(finished, key=lambda run: run.config.training.iterations, default=None)
