"""The training loop: one for everything that learns step by step.

An `Objective` is what is learned and how one step changes it, a `Fit` takes its steps and keeps a run folder
up to date, and `run_to_end` takes all steps of one or several.
"""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Self

import torch
from torch import nn

from pathaware.core.errors import RunError, Stopped, UsageError
from pathaware.core.execution import CapturableStep, captured
from pathaware.training.distributed import ALONE, AgreedStop, StopRequest, World
from pathaware.training.progress import (
    EventFile,
    MetricsWindow,
    Progress,
    ProgressDisplay,
    StepOutcome,
    duration,
)
from pathaware.training.run_files import FolderLock, RunFolder
from pathaware.training.state import State

Execute = Callable[[Any, float], StepOutcome]
"""Takes a step with a plan, at a learning rate."""
MakeDisplay = Callable[[str, int], ProgressDisplay]
"""Makes the display of a title and a number of steps."""
QUIET: MakeDisplay = partial(ProgressDisplay, quiet=True)

MOST_SKIPPED = 100
"""Consecutive gradients that may be non-finite before a run fails."""
ANNOUNCE_AFTER, LONG = 3, 600.0
"""Steps after which the length of a run is estimated, and the seconds from which it is announced."""


class Objective(ABC):
    """The thing that is learned, and how one step changes it.

    A step depends on the settings, the modules in `kept`, the optimiser and its own number only: a run that
    was stopped and resumed gives the numbers of one that was not.
    """

    title: str
    kind = "train"  # the command that resumes it
    advice: str  # what to do if gradients are not finite
    device: torch.device
    capturable: bool  # True if a CUDA graph can replay the step
    steps: int
    unit = 1  # steps that one line of the metrics counts: 1, or those of an epoch
    log_every: int  # in steps, like the following
    validate_every = 0  # 0 for never
    save_every = 0
    most_skipped = MOST_SKIPPED

    @property
    @abstractmethod
    def kept(self) -> Mapping[str, nn.Module]:
        """The modules that a state keeps, once the objective is prepared."""

    @abstractmethod
    def prepare(self, *, new: bool) -> CapturableStep[StepOutcome]:
        """Make the step; only a new run loads a pretraining first or takes statistics of its data."""

    @abstractmethod
    def schedule(self, iteration: int) -> tuple[float, bool]:
        """Set in place what changes over training; return the learning rate, and True if a captured graph
        is stale."""

    @abstractmethod
    def plan(self, iteration: int) -> Any:
        """All random choices of a step, made on the CPU from the seed and the iteration alone."""

    @abstractmethod
    def noise(self, iteration: int) -> None:
        """Seed PyTorch's generators for a step; called again if the step is repeated."""

    def validate(self) -> float:
        """The metric on validation data, if `validate_every` is not 0."""
        raise NotImplementedError  # an objective that validates defines it

    def improves(self, value: float, best: float | None) -> bool:
        """True if a validation is better than the best one so far."""
        return best is None or value > best

    def save(self, run: Any, done: int, value: float | None) -> None:  # noqa: B027
        """Write the checkpoint after `done` units of training, with its validation."""

    def after_validation(self, run: Any, done: int, value: float) -> None:  # noqa: B027
        """Keep what is chosen by validation beside the checkpoint."""

    def observe(self, execute: Execute, run: Any, iteration: int) -> Execute:
        """Wrap the execution of steps from this iteration on, to see what happens in them."""
        return execute

    def save_observed(self, run: Any) -> None:  # noqa: B027
        """Write what `observe` has seen, with every state and at the end."""

    def save_memory(self) -> None:
        """Use less memory from here on, without changing a number; raise if there is nothing left to do."""
        raise RunError("out of memory; use smaller batches or a smaller network")

    def faster(self) -> str:
        """A sentence that lists settings which would make training shorter."""
        return ""

    def settings(self) -> dict[str, Any]:
        """The settings, as a state stores them."""
        return {}

    def origin(self, iteration: int) -> dict[str, Any]:
        """The provenance of a training process that starts, or resumes, at an iteration."""
        return {}


class Fit:
    """One objective in one run folder, step by step. A lock keeps other processes out.

    The checkpoint is the best one by validation, or the last one if there is no validation. Without a folder
    nothing is written: in memory, and on ranks other than 0. If another process has finished the run by the
    time the lock is free, the fit is `done`.

    >>> from pathaware.training.config import Config
    >>> from pathaware.training.meta_training import MetaTraining
    >>> tables = {"problem": {"name": "sine"}, "method": {"name": "maml"}, "training": {"iterations": 3}}
    >>> fit = Fit(MetaTraining(Config.from_dict(tables)))
    >>> while not fit.done:
    ...     progress = fit.advance()
    >>> progress.iteration
    3
    """

    def __init__(
        self,
        objective: Objective,
        run: RunFolder | None = None,
        *,
        world: World = ALONE,
        display: MakeDisplay = QUIET,
    ) -> None:
        self.objective, self.run, self.world = objective, run, world
        self.display = QUIET(objective.title, objective.steps)
        self.lock: FolderLock | None = None
        self.board: EventFile | None = None
        self.iteration = objective.steps
        self.best: float | None = None
        try:
            state, finished = world.from_writer(self._open)
            if not finished:
                self._begin(state, display)
        except BaseException as error:
            self._close()
            if isinstance(error, UsageError) and run is not None:
                run.remove_untrained()
            raise

    def _open(self) -> tuple[State | None, bool]:
        """The state to resume from, and True if another process has finished the run."""
        run = self.run
        if run is None:
            return None, False
        self.lock = FolderLock(run.folder, f"{run.folder} is being trained by another process", field="run")
        return (None, True) if run.finished else (run.state(_note), False)

    def _begin(self, state: State | None, display: MakeDisplay) -> None:
        objective, run, world = self.objective, self.run, self.world
        self.iteration = self.saved = self.first = state.iteration if state else 0
        self.best = state.best if state else None
        self.step = objective.prepare(new=state is None)
        if state is not None:
            state.restore(objective.kept, self.step.optimizer)
        # Every rank has computed the initialisation, but GPUs round differently.
        world.equalise(self.step.changed)
        self.captured = captured(self.step, objective.capturable)
        self.execute = objective.observe(self.captured, run, self.iteration)
        if run is not None:
            with self._writing(run):
                units = self.iteration // objective.unit
                run.drop_metrics_after(units, _note)
                run.add_provenance(objective.origin(self.iteration))
                self.board = EventFile(run.folder, units if state else None)
            self.display = display(objective.title, objective.steps)
        self.window = MetricsWindow(state.seconds if state else 0.0, world)
        if state is not None and world.size == 1:  # a state holds the pending metrics of rank 0 only
            self.window.restore(state.pending, objective.device)
        self.started = time.perf_counter()

    def __enter__(self) -> Self:
        self.display.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.display.__exit__()
        self._close()

    def _close(self) -> None:
        if self.board is not None:
            self.board.close()
        if self.lock is not None:
            self.lock.release()

    @property
    def done(self) -> bool:
        """True after the last step."""
        return self.iteration >= self.objective.steps

    def advance(self) -> Progress | None:
        """Take a step; validate, log and save what is due. Return the log entry, if there is one."""
        objective, run = self.objective, self.run
        rate, stale = objective.schedule(self.iteration)
        if stale:
            self._reset()
        self.window.add(self._step(objective.plan(self.iteration), rate))
        self.iteration += 1
        every = objective.validate_every
        validating = every > 0 and (self.done or self.iteration % every == 0)
        progress = None
        if self.done or validating or self.iteration % objective.log_every == 0:
            progress = self._close_window(rate, validating)
        elif self.display.due:
            self.display.show(self.iteration, self.window.last_loss(), self.window.seconds)
        self._announce()
        if run is not None and self.done:
            with self._writing(run):
                run.remove_states()
        elif progress and 0 < objective.save_every <= self.iteration - self.saved:
            self.save()  # right after a log entry, when no metrics are pending
        return progress

    def _step(self, plan: Any, rate: float) -> StepOutcome:
        """Take a step; if memory runs out, again with less memory and the same noise."""
        while True:
            self.objective.noise(self.iteration)
            try:
                return self.execute(plan, rate)
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not _out_of_memory(error):
                    raise
            self.step.optimizer.zero_grad()  # outside the handler, in which the error keeps tensors alive
            self.objective.save_memory()
            self._reset()

    def _reset(self) -> None:
        """Free a captured graph; the next step captures a new one."""
        if reset := getattr(self.captured, "reset", None):
            reset()

    def _close_window(self, rate: float, validating: bool) -> Progress:
        """Validate if it is time, and log."""
        objective = self.objective
        if self.window.consecutive_skipped() >= objective.most_skipped:
            raise RunError(
                f"the last {objective.most_skipped} gradients were not finite: {objective.advice}; the last "
                "state and checkpoint are intact"
            )
        value = objective.validate() if validating else None
        progress = self.window.close(self.iteration // objective.unit, rate, value)
        if self.run is not None:
            with self._writing(self.run):
                self._log(self.run, progress)
        return progress

    def _log(self, run: RunFolder, progress: Progress) -> None:
        objective, value, done = self.objective, progress.validation, progress.iteration
        if value is not None and objective.improves(value, self.best):
            self.best = value
            objective.save(run, done, value)
        if value is not None:
            objective.after_validation(run, done, value)
        if self.done:
            objective.save_observed(run)
            if self.best is None:
                objective.save(run, done, None)
        # Last, because the log entry of the last iteration marks the run as finished.
        run.append(progress)
        assert self.board is not None
        self.board.add(progress)
        self.display.show(self.iteration, progress.loss, progress.seconds)

    def _announce(self) -> None:
        """After a few steps of a long run on a CPU, say how long it will take and what would help."""
        done = self.iteration - self.first
        if done != ANNOUNCE_AFTER or self.objective.device.type != "cpu":
            return
        each = (time.perf_counter() - self.started) / done
        left = each * (self.objective.steps - self.iteration)
        if left >= LONG and (advice := self.objective.faster()):
            self.display.note(f"about {duration(left)} on this CPU, {each:.2f} s per iteration; {advice}")

    def save(self) -> None:
        """Write the state, from which the run can resume."""
        if self.run is not None:
            with self._writing(self.run):
                self.objective.save_observed(self.run)
                self.run.save_state(self.state())
            self.saved = self.iteration

    def state(self) -> State:
        """The state to resume from."""
        kept, settings, pending = self.objective.kept, self.objective.settings(), self.window.pending()
        progress = self.iteration, self.window.seconds, self.best
        return State.of(kept, self.step.optimizer, *progress, settings, pending)

    @contextmanager
    def _writing(self, run: RunFolder) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kept = f"its state after {self.saved} iterations is kept"
            kept = kept if self.saved else "nothing was saved yet"
            kept = kept if run.folder.exists() else "the folder is gone"
            raise RunError(f"{run.folder} cannot be written ({error.strerror or error}); {kept}") from None


def run_to_end(fits: Iterable[Fit]) -> None:
    """Take all steps, side by side if there are several fits.

    On SIGTERM or Ctrl-C they finish the step, save, and `Stopped` is raised, also after the last step: the
    caller may have more to do. The first step is not finished: it may include a minute of compilation.
    Signals are noted from the moment the first fit is made, if `fits` is a generator.

    Small images leave most of a large GPU idle. Several fits, each in a CUDA stream of its own, fill it.
    """
    with StopRequest() as request, ExitStack() as stack:
        running = [stack.enter_context(fit) for fit in fits]
        world = running[0].world
        stop = AgreedStop(request, world)
        if not all(fit.display.quiet for fit in running):
            request.notice = "stopping after this iteration; press Ctrl-C again to stop at once"
        streams = [_stream(fit.objective.device, alone=len(running) == 1) for fit in running]
        request.at_once = world.size == 1
        while not all(fit.done for fit in running):
            for fit, stream in zip(running, streams, strict=True):
                if not fit.done:
                    with torch.cuda.stream(stream), _stopped_at_once(request, running):
                        fit.advance()
                request.at_once = False
            signum = stop.after_step()
            if signum is not None:
                left = [fit for fit in running if not fit.done]
                for fit in left:
                    fit.save()
                named = left or running  # after the last step, what follows training is left
                after = sorted({fit.iteration for fit in named})
                raise _stopped(signum, named, f"stopped after iteration {' and '.join(map(str, after))}")


@contextmanager
def _stopped_at_once(request: StopRequest, fits: Sequence[Fit]) -> Iterator[None]:
    """Report a stop in the first step like any other: the state it began with is still the last one."""
    try:
        if request.at_once and request.signum is not None:  # it came while the fits were made
            raise KeyboardInterrupt
        yield
    except KeyboardInterrupt:
        if not request.at_once or request.signum is None:
            raise
        raise _stopped(request.signum, fits, "stopped in the first step; nothing is lost") from None


def _stopped(signum: int, fits: Sequence[Fit], how: str) -> Stopped:
    folders = [fit.run.folder for fit in fits if fit.run is not None]
    return Stopped(signum, folders, fits[0].objective.kind, how)


def _stream(device: torch.device, *, alone: bool) -> torch.cuda.Stream | None:
    """A CUDA stream for one of several fits; None for PyTorch's current stream."""
    if alone or device.type != "cuda":
        return None
    torch.cuda.synchronize()  # earlier work must be complete before another stream uses it
    return torch.cuda.Stream(device)


def _out_of_memory(error: RuntimeError) -> bool:
    """True if memory ran out: on a GPU the error has its own class, on a CPU only its message says so."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
