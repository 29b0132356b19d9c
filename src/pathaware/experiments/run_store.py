"""What runs reached, from the files that say so."""

from __future__ import annotations

import glob
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pathaware.core.errors import UsageError
from pathaware.experiments.paper.tables import Trial, signature
from pathaware.experiments.paper.time_estimate import Pace, fitting, measure
from pathaware.training.config import Config
from pathaware.training.evaluation import evaluate
from pathaware.training.metric import Metric
from pathaware.training.provenance import evaluation_record, write_record
from pathaware.training.run_folder import Run
from pathaware.training.session import check, train_sessions


@dataclass(frozen=True)
class Result:
    """One evaluated run: its record, and what of its configuration tells it from others."""

    record: dict[str, Any]
    signature: str
    iterations: int
    seed: int

    @classmethod
    def of(cls, record: dict[str, Any]) -> Result:
        config = Config.from_dict(record["config"])
        return cls(record, signature(config), config.training.iterations, config.training.seed)

    @property
    def device(self) -> str:
        return str(self.record["environment"]["device"])

    def value(self, metric: Metric) -> tuple[float, float]:
        """The metric and its 95 % interval."""
        result = self.record["result"]
        return result[metric.name], result[f"{metric.name}_ci95"]


class Results:
    """A folder of records, looked up by what was trained."""

    def __init__(self, found: Iterable[Result]) -> None:
        self.found = list(found)

    @classmethod
    def read(cls, folder: Path, names: Sequence[str] = ()) -> Results:
        """All records of a folder, or those of runs with certain names."""
        patterns = [f"{glob.escape(name)}-[0-9]*-seed[0-9]*.json" for name in names] or ["*.json"]
        found = []
        for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                judged = record.get("result", {}) if isinstance(record, dict) else {}
                # Of a run that was judged several times, the paper's way counts: on test tasks, transductive.
                if judged.get("split") == "test" and judged.get("transductive"):
                    found.append(Result.of(record))
            except (OSError, ValueError, KeyError) as error:
                raise UsageError(f"{path} is no record of a run ({error})", field="results") from None
        return cls(found)

    def of(self, trial: Trial, iterations: int | None = None) -> list[Result]:
        """A result a seed, of the longest training unless its length is given."""
        wanted = signature(trial.config())
        same = [r for r in self.found if r.signature == wanted and iterations in (None, r.iterations)]
        longest = max((r.iterations for r in same), default=0)
        by_seed = {r.seed: r for r in same if r.iterations == longest}
        return [by_seed[seed] for seed in sorted(by_seed)]

    def common_length(self, trials: Sequence[Trial]) -> int | None:
        """The number of iterations that most of these trials were trained for; of several, the largest."""
        counts: dict[int, int] = {}
        for trial in trials:
            wanted = signature(trial.config())
            for length in {r.iterations for r in self.found if r.signature == wanted}:
                counts[length] = counts.get(length, 0) + 1
        return max(counts, key=lambda length: (counts[length], length)) if counts else None


# A folder in which trials are trained, judged and kept: what is done is not done again.


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


@dataclass(frozen=True)
class Length:
    """How long to train: as the paper did, for a number of iterations, or for a time.

    With a `budget`, in seconds, a trial that was begun keeps the length it was given then, and the others
    share what time there is. If all must be `equal`, they all take the length of what was begun; if they are
    `timed`, each gets the same time, and only runs of their own names count.
    """

    iterations: int | None = None
    budget: float | None = None
    equal: bool = False
    timed: bool = False


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

    def results(self, trials: Sequence[Trial] = ()) -> Results:
        """All records, or those of runs with the names of these trials."""
        return Results.read(self.records, [trial.name for trial in trials])

    def orders(self, trials: Sequence[Trial], length: Length, seeds: int = 1) -> list[Order]:
        """What is missing, each trial once: rows can share one, such as PAMELA and the ablation that ablates
        nothing."""
        trials, results = _different(trials), self.results(trials if length.timed else ())
        lengths = self._lengths(trials, length, seeds, results)
        orders = []
        for trial in trials:
            done = {r.seed for r in results.of(trial, lengths[trial.name])}
            orders += [Order(trial, s, lengths[trial.name]) for s in range(seeds) if s not in done]
        return orders

    def _lengths(
        self, trials: Sequence[Trial], length: Length, seeds: int, results: Results | None = None
    ) -> dict[str, int]:
        if length.budget is None:
            return {t.name: length.iterations or t.config().training.iterations for t in trials}
        found = {t.name: n for t in trials if (n := self._begun(t, None if length.equal else results))}
        if length.equal and found:
            return {t.name: max(found.values()) for t in trials}
        left = [t for t in trials if t.name not in found]
        if length.timed and left:  # what is done has had its time
            budget = length.budget * len(left) / len(trials)
            return found | self._fitting(left, seeds, budget, timed=True)
        return found | self._fitting(left, seeds, length.budget)

    def _fitting(
        self, trials: Sequence[Trial], seeds: int, budget: float, *, timed: bool = False
    ) -> dict[str, int]:
        every = [trial for trial in trials for _ in range(seeds)]
        full = [trial.config().training.iterations for trial in every]
        started = time.perf_counter()
        paces = [self.pace(trial) for trial in every]
        measuring = 0 if timed else time.perf_counter() - started
        found = fitting(paces, full, budget - measuring, timed=timed) if every else []
        return dict(zip((trial.name for trial in every), found, strict=True))

    def _begun(self, trial: Trial, results: Results | None) -> int | None:
        """The length of the longest run of this trial that is there, finished or not, or has a result."""
        lengths = [run.config.training.iterations for run in self._runs(trial)]
        lengths += [r.iterations for r in results.of(trial)] if results else []
        return max(lengths, default=None)

    def _runs(self, trial: Trial) -> list[Run]:
        found = [Run.open(folder) for folder in sorted(self.runs.glob(f"{trial.name}-[0-9]*-seed[0-9]*"))]
        return [run for run in found if signature(run.config) == signature(trial.config())]

    def pace(self, trial: Trial) -> Pace:
        if trial.name not in self.paces:
            config = trial.config()
            self.paces[trial.name] = measure(config, self.tasks or config.problem.evaluation_tasks)
        return self.paces[trial.name]

    def seconds(self, orders: Sequence[Order]) -> float:
        """How long these will take, what is done of them counted."""
        total = 0.0
        for order in orders:
            folder = self.runs / order.name
            run = Run.open(folder) if folder.exists() else None
            if run and run.finished:
                continue
            pace, state = self.pace(order.trial), run.state() if run else None
            if state:
                total += pace.each * (order.iterations - state.iteration)
            else:
                total += pace.seconds(order.iterations)
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
        if not folder.exists():
            check(order.config)
            return Run.create(folder, order.config)
        run = Run.open(folder)
        if signature(run.config) != signature(order.config):
            raise UsageError(
                f"{folder} holds a run of other settings; name a new folder or remove it", field="out"
            )
        return run

    def _judge(self, order: Order, run: Run) -> None:
        problem = run.config.problem
        result = evaluate(run.load(), problem, tasks=self.tasks or problem.evaluation_tasks)
        write_record(self.records / f"{order.name}.json", evaluation_record(run, result))

    def trained(self, trial: Trial) -> Run | None:
        """The longest finished run of a trial, for figures that need the network itself."""
        finished = [run for run in self._runs(trial) if run.finished]
        return max(finished, key=lambda run: run.config.training.iterations, default=None)

    def afresh(self, trials: Sequence[Trial], length: Length) -> list[Order]:
        """Runs of trials whose result may be known but whose network is not here."""
        lengths = self._lengths(trials, length, 1)
        return [Order(trial, 0, lengths[trial.name]) for trial in trials]


def _different(trials: Sequence[Trial]) -> list[Trial]:
    """Each once: rows can share a training, such as PAMELA and its ablation with everything left in."""
    return list({signature(trial.config()): trial for trial in reversed(trials)}.values())[::-1]
