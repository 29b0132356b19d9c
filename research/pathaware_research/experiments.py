"""Experiments of the paper and of studies: configurations without seed and length, and their results.

An `Experiment` is a configuration without seed and length, `Results` are the records of evaluated runs, and
a `RunStore` holds the runs of experiments.
"""

from __future__ import annotations

import copy
import glob
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pathaware.core.errors import UsageError
from pathaware.core.head import Head
from pathaware.methods import get_method
from pathaware.sweep import run_store
from pathaware.sweep.run_store import PlannedRun
from pathaware.training.config import Config
from pathaware.training.loop import Fit, MakeDisplay, run_to_end
from pathaware.training.meta_training import MetaTraining
from pathaware.training.progress import ProgressDisplay
from pathaware.training.provenance import EVALUATED, identity
from pathaware.training.run_folder import Run

# The training settings that decide the result. The others say how and where it is computed.
_DECISIVE = (
    *("tasks", "rate", "schedule", "clip", "guard", "dtype", "start", "rule_rate", "warmup"),
    *("head_rate", "head", "average", "evaluate_average", "distil", "temperature", "teacher", "teach"),
    *("classify", "classify_end", "dropout", "dimensions"),
)
_CHOOSING = ("validate", "validation_tasks")
"""Settings that decide which checkpoint is kept."""


def signature(config: Config) -> str:
    """A text that is equal for runs that differ in seed, length and the way they are computed only."""
    name, settings = _problem_settings(config)
    training = {name: getattr(config.training, name) for name in _DECISIVE}
    method_settings = sorted(config.method_settings.items(), key=str)
    return repr((name, settings, config.method, method_settings, training))


def _problem_settings(config: Config) -> tuple[str, dict[str, Any]]:
    problem: Any = config.problem
    return config.problem.name, {k: v for k, v in asdict(problem).items() if k != "data_dir"}


def experiment_key(config: Config) -> tuple[str, str]:
    """Equal for runs of the same experiment."""
    return signature(config), repr(identity(config))


@dataclass(frozen=True)
class Experiment:
    """A configuration without seed and length. `name` is for folders and files."""

    name: str
    tables: Mapping[str, Mapping[str, Any]]

    def config(self, seed: int = 0, iterations: int | None = None) -> Config:
        """The configuration of one run, by default with the number of iterations of `tables`."""
        tables: dict[str, Any] = copy.deepcopy({k: dict(v) for k, v in self.tables.items()})
        training = tables.setdefault("training", {})
        training["seed"] = seed
        if iterations is not None:
            training["iterations"] = iterations
        return Config.from_dict(tables)

    def with_settings(self, settings: Mapping[str, Mapping[str, Any]]) -> Experiment:
        """The same experiment with some settings replaced."""
        names = [*self.tables, *(table for table in settings if table not in self.tables)]
        return Experiment(self.name, {n: {**self.tables.get(n, {}), **settings.get(n, {})} for n in names})

    def run(self, seed: int, iterations: int) -> PlannedRun:
        return PlannedRun(f"{self.name}-{iterations}-seed{seed}", self.config(seed, iterations))


class Result(run_store.Result):
    """The record of an evaluated run, with the conditions under which it may be compared."""

    @cached_property
    def signature(self) -> str:
        return signature(self.config)

    @property
    def iterations(self) -> int:
        return self.config.training.iterations

    @property
    def seed(self) -> int:
        return self.config.training.seed

    @property
    def device(self) -> str:
        return str(self.record["environment"]["device"])

    @property
    def queries(self) -> str:
        """The level of transduction. Older records only say whether it was transductive."""
        result = self.record["result"]
        if "queries" in result:
            return str(result["queries"])
        return own_level(self.config) if result["transductive"] else "alone"

    @property
    def precision(self) -> str:
        """The precision of products in training; CPUs always compute in full."""
        trained_with = self.record.get("trained_with") or [{}]
        on_cpu = trained_with[0].get("device", "cuda" if "NVIDIA" in self.device else "cpu") == "cpu"
        training = self.config.training
        return "fp64" if training.dtype == "float64" else "fp32" if on_cpu else training.precision

    @property
    def conditions(self) -> dict[str, Any]:
        """Conditions in which two compared results must be equal: all but the method, the seed and the way in
        which the run was computed."""
        result, training = self.record["result"], self.config.training
        return {
            "iterations": self.iterations,
            "precision": self.precision,
            "problem": _problem_settings(self.config),
            "training": {name: getattr(training, name) for name in (*_DECISIVE, *_CHOOSING)},
            "tasks": result["tasks"],
            "evaluation": (result["split"], self.record.get("evaluation_seed", 0)),
            "queries": self.queries,
            "balance": result.get("balance", "balanced"),
            "views": (result.get("views", "single"), result.get("refine", "none")),
            "snapshots": result.get("snapshots", 1),
            "evaluated": self.record.get(EVALUATED),
        }


def own_level(config: Config) -> str:
    """The level at which a method is evaluated by default: joint if it adapts to the queries, else batch,
    or, if all statistics are constant, alone. It is that of `FewShotLearner.query_level`, without a learner.
    """
    method = get_method(config.method)
    joint = method.transductive and config.method_settings.get("transductive", True)
    constant = getattr(config.problem, "constant_statistics", False)
    normalises = (
        issubclass(method.adapter, Head) and method.adapter.predict_inductive is not Head.predict_inductive
    )
    constant = constant and not normalises  # over the queries
    return "joint" if joint else "alone" if constant else "batch"


def _plain(result: Mapping[str, Any]) -> bool:
    """True if an evaluation had balanced queries, single views, no pseudo-labels and one checkpoint."""
    usual = {"balance": "balanced", "views": "single", "refine": "none", "snapshots": 1}
    return all(result.get(name, value) == value for name, value in usual.items())


def usual_result(record: Any) -> Result | None:
    """The result in a record, if it is the one that counts of a run that was evaluated in several ways.

    It is of balanced test tasks of the data set, ways and shots of the training, with single views, at the
    level that `own_level` says.
    """
    result = record.get("result", {}) if isinstance(record, dict) else {}
    if result.get("split") != "test" or not _plain(result) or EVALUATED in record:
        return None
    one = Result(record)
    return one if one.queries == own_level(one.config) else None


class Results:
    """The records of a folder, looked up by experiment.

    With `precision` they are those of runs in this precision, whatever the experiment says.
    """

    def __init__(self, found: Iterable[Result], precision: str | None = None) -> None:
        self.found = list(found)
        self.precision = precision

    @classmethod
    def read(cls, folder: Path, names: Sequence[str] = ()) -> Results:
        """The usual results in a folder, of all experiments or those with certain names."""
        patterns = [f"{glob.escape(name)}-[0-9]*-seed[0-9]*.json" for name in names] or ["*.json"]
        found = []
        for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
            try:
                found.append(usual_result(json.loads(path.read_text(encoding="utf-8"))))
            except (OSError, ValueError, KeyError) as error:
                raise UsageError(f"{path} is not the record of a run ({error})", field="results") from None
        return cls(result for result in found if result)

    def matching(self, config: Config) -> list[Result]:
        """All results of the same experiment, in the precision of these results or else of `config`."""
        text = signature(config)
        wanted = {**identity(config), **({"precision": self.precision} if self.precision else {})}
        return [result for result in self.found if result.signature == text and result.identity == wanted]

    def of(self, experiment: Experiment, iterations: int | None = None) -> list[Result]:
        """One result per seed, all of the same number of iterations.

        Unless `iterations` is given, it is the one with the most seeds, of several the largest.
        """
        same = [r for r in self.matching(experiment.config()) if iterations in (None, r.iterations)]
        seeds = Counter(length for _, length in {(r.seed, r.iterations) for r in same})
        chosen = max(seeds, key=lambda length: (seeds[length], length), default=0)
        by_seed = {r.seed: r for r in same if r.iterations == chosen}
        return [by_seed[seed] for seed in sorted(by_seed)]

    def in_one_precision(self, experiments: Sequence[Experiment]) -> Results:
        """The results for a table of these experiments, all in one precision.

        It is that of the experiments if there is such a result, else the one that most results have.
        """
        configs = [experiment.config() for experiment in experiments]
        asked = {config.training.precision for config in configs}
        signatures = {signature(config) for config in configs}
        there = [r.config.training.precision for r in self.found if r.signature in signatures]
        counts = Counter(there)
        precision = max(counts, key=lambda each: (each in asked, counts[each]), default=None)
        return Results(self.found, precision)

    def common_length(self, experiments: Sequence[Experiment]) -> int | None:
        """The number of iterations that most of these experiments have a result for; the largest if tied."""
        counts: dict[int, int] = {}
        for experiment in experiments:
            for length in {result.iterations for result in self.matching(experiment.config())}:
                counts[length] = counts.get(length, 0) + 1
        return max(counts, key=lambda length: (counts[length], length)) if counts else None


@dataclass(frozen=True)
class RunStore(run_store.RunStore):
    """A folder of runs of experiments.

    Records go to `records` instead of `results/` if it is given. A run that is there must have the settings
    that decide its result.
    """

    records: Path | None = None

    @property
    def results_folder(self) -> Path:
        return self.records or super().results_folder

    def same(self, there: Config, wanted: Config) -> bool:
        return experiment_key(there) == experiment_key(wanted)

    def train(
        self,
        runs: Sequence[PlannedRun],
        at_once: int = 1,
        on_done: Callable[[PlannedRun], None] = lambda run: None,
    ) -> None:
        """Train, evaluate and record these runs in this process, `at_once` at a time on one GPU."""
        self.results_folder.mkdir(parents=True, exist_ok=True)
        for first in range(0, len(runs), at_once):
            group = runs[first : first + at_once]
            opened = [self.open(planned) for planned in group]
            unfinished = [run for run in opened if not run.finished]
            if unfinished:
                run_to_end(_fit(run, alone=len(unfinished) == 1) for run in unfinished)
            for planned, run in zip(group, opened, strict=True):
                self.evaluate(planned, run)
                on_done(planned)

    def results(self, experiments: Sequence[Experiment] = ()) -> Results:
        """All records, or those of runs with the names of these experiments."""
        return Results.read(self.results_folder, [experiment.name for experiment in experiments])

    def trained_fraction(self, planned: PlannedRun) -> float:
        """The fraction of a run's iterations that its log has, also while it is being trained."""
        run = Run(self.run_folder(planned), planned.config)
        return max((row["iteration"] for row in run.metrics()), default=0) / run.iterations

    def runs_of(self, experiment: Experiment) -> list[Run]:
        """The runs of an experiment that are there, finished or not."""
        folders = sorted((self.folder / "runs").glob(f"{glob.escape(experiment.name)}-[0-9]*-seed[0-9]*"))
        key = experiment_key(experiment.config())
        return [run for run in map(Run.open, folders) if experiment_key(run.config) == key]

    def trained(self, experiment: Experiment) -> Run | None:
        """The longest finished run of an experiment, for figures that need the network itself."""
        finished = [run for run in self.runs_of(experiment) if run.finished]
        return max(finished, key=lambda run: run.config.training.iterations, default=None)


def _fit(run: Run, *, alone: bool) -> Fit:
    """The training of a run, with a bar if it is alone, otherwise with lines that name its folder."""
    lines: MakeDisplay = lambda _, steps: ProgressDisplay(run.folder.name, steps, bar=False)  # noqa: E731
    return Fit(MetaTraining(run.config), run, display=ProgressDisplay if alone else lines)
