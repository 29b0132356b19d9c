"""A search by Optuna: it chooses the points and whom to stop early, we train them."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from pathaware.core.errors import UsageError
from pathaware.experiments.sweep.grid import PAUSE
from pathaware.experiments.sweep.plan import Plan, Point, Range
from pathaware.experiments.sweep.summary import Outcome
from pathaware.experiments.sweep.workers import Crew, Folder
from pathaware.training.run_folder import Run

STUDY, PLAN = "study.db", "plan"


def optuna() -> Any:
    """The package, which is no dependency of ours."""
    try:
        import optuna as found
    except ImportError:
        raise UsageError("[sweep] search: Optuna is not installed; `pip install optuna` brings it") from None
    found.logging.set_verbosity(found.logging.WARNING)
    return found


class Search:
    """A study in `study.db`. Trials that were under way when a search was stopped are continued first."""

    def __init__(self, plan: Plan, folder: Folder, told: Callable[[str], None]) -> None:
        self.plan, self.folder, self.told = plan, folder, told
        self.optuna = optuna()
        example = next(plan.grid()).config
        self.metric = example.problem.metric
        self.study = self.optuna.create_study(
            study_name="sweep",
            storage=f"sqlite:///{(folder.path / STUDY).absolute()}",
            direction="minimize" if self.metric.lower_is_better else "maximize",
            load_if_exists=True,
        )
        # A search that goes on must not draw again what it drew before it was stopped.
        seed = (example.training.seed + len(self.study.trials)) % 2**32
        self.study.sampler = self.optuna.samplers.TPESampler(seed=seed)
        text = json.dumps({"base": plan.base, "axes": plan.axes}, default=repr, sort_keys=True)
        if self.study.user_attrs.setdefault(PLAN, text) != text:
            raise UsageError(
                f"{folder.path} holds a search of other settings; name a new folder", field="out"
            )
        self.study.set_user_attr(PLAN, text)
        self.trials: dict[str, Any] = {}

    def run(self, places: Sequence[dict[str, str]]) -> list[Outcome]:
        running = self.optuna.trial.TrialState.RUNNING
        left = [trial.number for trial in self.study.get_trials(states=(running,))]
        with Crew(self.folder, places) as crew:
            while True:
                while crew.idle and (left or len(self.study.trials) < self.plan.trials):
                    self._start(crew, left.pop(0) if left else None)
                if not crew.workers:
                    break
                for worker in crew.workers:
                    self._follow(crew, worker.point)
                for ended in crew.ended():
                    self._end(ended.point, ended.reason)
                time.sleep(PAUSE)
        return self._outcomes()

    def _start(self, crew: Crew, number: int | None) -> None:
        """A new trial, or one that was under way, whose process is gone."""
        if number is None:
            trial = self.study.ask(self._distributions())
        else:
            trial = self.optuna.trial.Trial(self.study, self.study.trials[number]._trial_id)
        try:
            point = self._point(trial)
            self.folder.must_fit(point)
        except UsageError as error:  # two values that do not go together
            self._fail(trial, str(error))
            return
        self.trials[point.name] = trial
        crew.start(point)

    def _point(self, trial: Any) -> Point:
        settings = {name: trial.params[name] for name in self.plan.axes}
        return self.plan.point(settings, f"trial{trial.number:04}")

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

    def _follow(self, crew: Crew, point: Point) -> None:
        """Tell Optuna what a run says of itself, and the run if Optuna has seen enough."""
        trial = self.trials[point.name]
        if "pruned" in trial.user_attrs:  # it was told, and is saving its state
            return
        known = self.study.trials[trial.number].intermediate_values
        for iteration, value in self._validations(point):
            if iteration not in known and math.isfinite(value):
                trial.report(value, iteration)
                if trial.should_prune() and iteration < point.config.training.iterations:
                    trial.set_user_attr("pruned", iteration)
                    crew.dismiss(point)
                    return

    def _validations(self, point: Point) -> list[tuple[int, float]]:
        run = Run(self.folder.run(point), point.config)
        try:
            return [(r["iteration"], r["validation"]) for r in run.metrics() if r["validation"] is not None]
        except UsageError:  # it is writing just now
            return []

    def _end(self, point: Point, reason: str) -> None:
        trial, state = self.trials.pop(point.name), self.optuna.trial.TrialState
        result = self.folder.result(point)
        value = result.value(self.metric)[0] if result else math.nan
        if math.isfinite(value):
            self.study.tell(trial.number, value)
            self.told(f"{point.name}: {self.metric.name} {value:.4f}")
        elif "pruned" in trial.user_attrs and not reason:
            self.study.tell(trial.number, state=state.PRUNED)
            self.told(f"{point.name}: stopped early")
        else:
            self._fail(trial, reason or "diverged: its result is not a finite number")

    def _fail(self, trial: Any, reason: str) -> None:
        trial.set_user_attr("reason", f"failed: {reason}")
        self.study.tell(trial.number, state=self.optuna.trial.TrialState.FAIL)
        self.told(f"trial{trial.number:04}: {reason}")

    def _outcomes(self) -> list[Outcome]:
        found = []
        for trial in self.study.trials:
            attributes = trial.user_attrs
            reason = attributes.get("reason", "")
            if "pruned" in attributes and trial.state == self.optuna.trial.TrialState.PRUNED:
                reason = f"stopped early after {attributes['pruned']:,} iterations"
            try:
                point = self._point(trial)
            except UsageError:
                continue  # it was told when it failed, and has no configuration to show
            found.append(Outcome(point, None if reason else self.folder.result(point), reason))
        return found
