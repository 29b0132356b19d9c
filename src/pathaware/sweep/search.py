"""How a sweep goes through its runs: all combinations, or a search by Optuna, which chooses the settings of
each run and stops runs that fall behind."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from pathaware.core.errors import UsageError
from pathaware.data.store import counted
from pathaware.sweep.plan import Range, SweepPlan
from pathaware.sweep.run_store import PlannedRun, RunStore
from pathaware.sweep.summary import Outcome
from pathaware.sweep.training_worker import PAUSE
from pathaware.sweep.worker_backends import require_package
from pathaware.sweep.worker_pool import Ended, WorkerPool
from pathaware.training.run_folder import Run

STUDY, PLAN = "study.db", "plan"


def run_grid(
    runs: Sequence[PlannedRun], store: RunStore, pool: WorkerPool, say: Callable[[str], None]
) -> list[Outcome]:
    """Train and evaluate the runs without a result. One that fails does not stop the others."""
    missing = [run for run in runs if store.result(run) is None]
    failed: dict[str, str] = {}
    done = len(runs) - len(missing)

    def on_ended(ended: Ended) -> None:
        nonlocal done
        done += 1
        if ended.reason:
            failed[ended.run.name] = f"failed: {ended.reason}"
        say(f"{done} of {len(runs)}: {ended.run.name}: {ended.reason or 'done'}")

    with pool:
        at_once = min(pool.size, len(runs))
        say(f"{counted(len(runs), 'run')}, {len(missing)} to train or evaluate, {at_once} at a time")
        pool.run(missing, on_ended)
    return [Outcome(run, store.result(run), failed.get(run.name, "")) for run in runs]


def optuna() -> Any:
    """Import Optuna, which is an optional dependency."""
    found = require_package("optuna", "[sweep] search", "pip install optuna", None)
    found.logging.set_verbosity(found.logging.WARNING)
    return found


class Search:
    """A study in `study.db`. Trials that were running when a search was stopped are resumed first."""

    def __init__(self, plan: SweepPlan, store: RunStore, say: Callable[[str], None]) -> None:
        self.plan, self.store, self.say = plan, store, say
        self.optuna = optuna()
        example = next(plan.grid()).config
        self.metric = example.problem.metric
        self.study = self.optuna.create_study(
            study_name="sweep",
            storage=f"sqlite:///{(store.folder / STUDY).absolute()}",
            direction="minimize" if self.metric.lower_is_better else "maximize",
            load_if_exists=True,
        )
        # A search that is resumed must not draw the numbers again that it drew before.
        seed = (example.training.seed + len(self.study.trials)) % 2**32
        self.study.sampler = self.optuna.samplers.TPESampler(seed=seed)
        text = json.dumps(
            {"preset": plan.preset, "base": plan.base, "axes": plan.axes}, default=repr, sort_keys=True
        )
        if self.study.user_attrs.setdefault(PLAN, text) != text:
            raise UsageError(
                f"{store.folder} holds a search of other settings; name a new folder", field="out"
            )
        self.study.set_user_attr(PLAN, text)
        self.trials: dict[str, Any] = {}

    def run(self, pool: WorkerPool) -> list[Outcome]:
        running = self.optuna.trial.TrialState.RUNNING
        left = [trial.number for trial in self.study.get_trials(states=(running,))]
        with pool:
            while True:
                while pool.free and (left or len(self.study.trials) < self.plan.trials):
                    self._start(pool, left.pop(0) if left else None)
                if not pool.running:
                    break
                for run in pool.running:
                    self._prune(pool, run)
                for ended in pool.ended():
                    self._finish(ended.run, ended.reason)
                time.sleep(PAUSE)
        return self._outcomes()

    def _start(self, pool: WorkerPool, number: int | None) -> None:
        """Start a new trial, or resume one whose process is gone."""
        if number is None:
            trial = self.study.ask(self._distributions())
        else:
            trial = self.optuna.trial.Trial(self.study, self.study.trials[number]._trial_id)
        try:
            run = self._planned(trial)
            self.store.check_settings(run)
        except UsageError as error:  # two values that do not go together
            self._fail(trial, error.message)
            return
        self.trials[run.name] = trial
        pool.submit(run)
        if "pruned" in trial.user_attrs:
            pool.stop(run)

    def _planned(self, trial: Any) -> PlannedRun:
        settings = {name: trial.params[name] for name in self.plan.axes}
        return self.plan.run(settings, f"trial{trial.number:04}")

    def _distributions(self) -> dict[str, Any]:
        kinds = self.optuna.distributions
        return {
            name: kinds.CategoricalDistribution(axis)
            if not isinstance(axis, Range)
            else (kinds.IntDistribution if axis.whole else kinds.FloatDistribution)(
                axis.low, axis.high, log=axis.log
            )
            for name, axis in self.plan.axes.items()
        }

    def _prune(self, pool: WorkerPool, run: PlannedRun) -> None:
        """Report the validations of a run to Optuna, and stop the run if Optuna says so."""
        trial = self.trials[run.name]
        if "pruned" in trial.user_attrs:  # it was asked to stop, and is saving its state
            return
        known = self.study.trials[trial.number].intermediate_values
        for iteration, value in self._validations(run):
            if iteration not in known and math.isfinite(value):
                trial.report(value, iteration)
                if trial.should_prune() and iteration < run.config.training.iterations:
                    trial.set_user_attr("pruned", iteration)
                    pool.stop(run)
                    return

    def _validations(self, planned: PlannedRun) -> list[tuple[int, float]]:
        run = Run(self.store.run_folder(planned), planned.config)
        try:
            return [(r["iteration"], r["validation"]) for r in run.metrics() if r["validation"] is not None]
        except UsageError:  # a line is being written
            return []

    def _finish(self, run: PlannedRun, reason: str) -> None:
        trial, state = self.trials.pop(run.name), self.optuna.trial.TrialState
        result = self.store.result(run)
        value = result.value(self.metric)[0] if result else math.nan
        if math.isfinite(value):
            self.study.tell(trial.number, value)
            self.say(f"{run.name}: {self.metric.name} {value:.4f}")
        elif "pruned" in trial.user_attrs and not reason:
            self.study.tell(trial.number, state=state.PRUNED)
            self.say(f"{run.name}: stopped early")
        else:
            self._fail(trial, reason or "diverged: its result is not a finite number")

    def _fail(self, trial: Any, reason: str) -> None:
        trial.set_user_attr("reason", f"failed: {reason}")
        self.study.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)
        self.say(f"trial{trial.number:04}: {reason}")

    def _outcomes(self) -> list[Outcome]:
        found = []
        for trial in self.study.trials:
            attributes = trial.user_attrs
            reason = attributes.get("reason", "")
            if "pruned" in attributes and trial.state == self.optuna.trial.TrialState.PRUNED:
                reason = f"stopped early after {attributes['pruned']:,} iterations"
            try:
                run = self._planned(trial)
            except UsageError:
                continue  # its error was printed when it failed, and it has no configuration to show
            found.append(Outcome(run, None if reason else self.store.result(run), reason))
        return found
