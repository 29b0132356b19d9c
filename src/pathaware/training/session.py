"""Training runs in folders: one or several, new or resumed, in one process or in many."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Self

import torch

from pathaware.core.errors import RunError, Stopped, UsageError
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.seeding import generator
from pathaware.training.config import Config, Training, differences
from pathaware.training.distributed import ALONE, AgreedStop, StopRequest, World
from pathaware.training.gradient_probe import probed_tensor
from pathaware.training.pretraining import start_from
from pathaware.training.progress import EventFile, Progress, ProgressDisplay, duration
from pathaware.training.provenance import training_origin
from pathaware.training.run_folder import CONFIG, HISTOGRAMS, FolderLock, Run, must_exist
from pathaware.training.trainer import Trainer, build


def default_folder(config: Config) -> Path:
    """The folder of a run whose user named none, such as `runs/sine-k10-pamela-seed0`."""
    method = config.method.replace(":", "-")  # a plug-in is named module:METHOD
    return Path("runs") / f"{config.problem.label}-{method}-seed{config.training.seed}"


ANNOUNCE_AFTER, LONG = 3, 600.0
"""Iterations after which the length of a run is estimated, and the seconds from which it is announced."""


def log_interval(training: Training) -> int:
    """Iterations between log entries: a hundred entries of a short run, and more of a long one."""
    return max(1, min(100, training.iterations // 100))


class AlreadyTrained(UsageError):
    """Another process finished the run after this one had opened it."""


class TrainingSession:
    """Trains a run and keeps its folder up to date. A lock keeps other processes out.

    The checkpoint is the best one by validation, or the last one if there is no validation. A run that is
    finished by the time the lock is free raises `AlreadyTrained`.
    """

    def __init__(self, run: Run, *, quiet: bool = False, bar: bool = True, world: World = ALONE) -> None:
        self.run, self.training = run, run.config.training
        self.lock = FolderLock(run.folder, f"{run.folder} is being trained by another process", field="run")
        try:
            if run.finished:
                raise AlreadyTrained(f"{run.folder} was finished by another process", field="run")
            state = run.state(_print_note)
            self.saved = state.iteration if state else 0
            with self._writing():
                run.drop_metrics_after(self.saved, _print_note)
                run.add_provenance(training_origin(run, self.saved, world.size))
            self.best = state.best if state else None
            self.started_at, self.started = self.saved, 0.0
            histograms = run.histograms() if state else None
            self.trainer = Trainer(run.config, state, log_interval(self.training), histograms, world)
            title = f"{run.config.method} on {run.config.problem.label}" if bar else run.folder.name
            self.display = ProgressDisplay(title, self.training.iterations, quiet=quiet, bar=bar)
            with self._writing():
                self.board = EventFile(run.folder, self.saved if state else None)
        except BaseException as error:
            self.lock.release()
            if isinstance(error, UsageError):
                run.remove_untrained()
            raise

    @property
    def done(self) -> bool:
        return self.trainer.done

    def __enter__(self) -> Self:
        self.display.__enter__()
        self.started = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.display.__exit__(None, None, None)
        self.board.close()
        self.lock.release()

    def advance(self) -> None:
        """Run one meta-iteration and write what is due."""
        progress = self.trainer.advance()
        if progress:
            with self._writing():
                self._log(progress)
        elif self.display.due:
            window = self.trainer.window
            self.display.show(self.trainer.iteration, window.last_loss(), window.seconds)
        self._announce()
        if self.done:
            with self._writing():
                self.run.remove_states()
        elif progress and 0 < self.training.save <= self.trainer.iteration - self.saved:
            self.save()  # right after a log entry, when no metrics are pending

    def _announce(self) -> None:
        """After a few iterations of a long run on a CPU, say how long it will take and what would help."""
        done = self.trainer.iteration - self.started_at
        if done != ANNOUNCE_AFTER or self.training.torch_device.type != "cpu":
            return
        each = (time.perf_counter() - self.started) / done
        left = each * (self.training.iterations - self.trainer.iteration)
        if left >= LONG:
            self.display.note(
                f"about {duration(left)} on this CPU, {each:.2f} s per iteration; {shorter(self.run.config)}"
            )

    def save(self) -> None:
        """Write the state, from which the run can resume."""
        with self._writing():
            self._save_histograms()
            self.run.save_state(self.trainer.state(self.best))
        self.saved = self.trainer.iteration

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kept = (
                f"its state after {self.saved} iterations is kept" if self.saved else "nothing was saved yet"
            )
            reason = error.strerror or error
            raise RunError(f"{self.run.folder} cannot be written ({reason}); {kept}") from None

    def _log(self, progress: Progress) -> None:
        value = progress.validation
        if value is not None and self.run.config.problem.metric.improves(value, self.best):
            self.best = value
            self.run.save(self.trainer.evaluated, progress.iteration)
        if value is not None and self.training.snapshots:
            self.run.save_snapshot(self.trainer.evaluated, progress.iteration, value)
        if self.done:
            self._save_histograms()
            if self.best is None:
                self.run.save(self.trainer.evaluated, progress.iteration)
        # Last, because the log entry of the last iteration marks the run as finished.
        self.run.append(progress)
        self.board.add(progress)
        self.display.show(progress.iteration, progress.loss, progress.seconds)

    def _save_histograms(self) -> None:
        if self.trainer.histograms:
            self.trainer.histograms.save(self.run.folder / HISTOGRAMS)


def _print_note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def shorter(config: Config) -> str:
    """A sentence that lists settings which would make a run shorter."""
    known = config.method_settings
    ways = ["fewer training.iterations", "fewer training.tasks per iteration"]
    if known.get("steps", 1) > 1:
        ways.append("fewer method.steps")
    if not config.problem.regression:
        ways += ["a smaller problem.width", "smaller images", "a method without an inner loop (prototypical)"]
    return f"what would be faster: {', '.join(ways)}, or a GPU"


def check(config: Config) -> None:
    """Build network and tasks once, so that invalid settings are an error before a folder is created."""
    training = config.training
    try:
        learner = build(config, dropout=training.dropout)
        if training.start:
            start_from(learner, Path(training.start))
        estimator = learner.meta_gradient
        if training.head != "learned" and not estimator.head_start:
            raise UsageError(
                f"{config.method} learns the initialisation of every layer, and {training.head!r} would "
                "replace that of the last one; leave it out",
                field="head",
            )
        if config.has_recipe:
            from pathaware.training.recipe import check_recipe

            check_recipe(config, learner, estimator)
        if training.histograms:
            probed_tensor(learner)
        for split in ("train", "val") if training.validate else ("train",):
            source = config.problem.tasks(split, training.torch_device, training.torch_dtype)
            count = training.tasks if split == "train" else 1
            source.draw(count, generator(training.seed, "check"))
    except (MemoryError, OverflowError, RuntimeError) as error:
        # PyTorch has many errors for what it cannot allocate or index.
        reason = str(error).strip().split("\n")[0]
        raise UsageError(f"these settings cannot be computed here ({reason})") from None


def train_run(config: Config, folder: Path, *, quiet: bool = False) -> Run:
    """Train a configuration in a new folder; print progress unless `quiet`, and return the finished run.

    >>> import tempfile
    >>> tables = {"problem": {"name": "sine"}, "method": {"name": "maml"}, "training": {"iterations": 2}}
    >>> run = train_run(Config.from_dict(tables), Path(tempfile.mkdtemp()) / "run", quiet=True)
    >>> run.finished, len(list(run.metrics()))
    (True, 2)
    """
    check(config)
    return train_sessions([Run.create(folder, config)], quiet=quiet)[0]


def open_to_resume(folder: Path, given: Mapping[str, Mapping[str, Any]]) -> Run:
    """Open a run to resume. Settings that are `given` must be those of the run."""
    must_exist(folder, "resume")
    run = Run.open(folder)
    tables = run.config.to_dict()
    for table, values in given.items():
        tables[table].update(values)
    found = differences(run.config, Config.from_dict(tables))
    if found:
        raise UsageError(f"{folder} was started with other settings: {found}", field="resume")
    return run


def resume_run(folder: Path, *, quiet: bool = False) -> Run:
    """Resume a run that was stopped, and return it; a finished run is returned unchanged."""
    run = Run.open(folder)
    return run if run.finished else train_sessions([run], quiet=quiet)[0]


def train_or_open(config: Config, folder: Path, *, quiet: bool = False) -> Run:
    """Open the run of this configuration in `folder`; train or resume it first unless it is finished."""
    run = open_or_create(config, folder)
    return run if run.finished else train_sessions([run], quiet=quiet)[0]


def open_or_create(config: Config, folder: Path) -> Run:
    """Open the run of this configuration in `folder`, or create it."""
    if not (folder / CONFIG).exists():
        check(config)
        return Run.create(folder, config)
    run = Run.open(folder)
    if run.config != config:
        Run.create(folder, config)  # raises: the folder holds another run
    return run


def train_sessions(runs: Iterable[Run], *, quiet: bool = False, world: World = ALONE) -> list[Run]:
    """Train these runs to the end, side by side if there are several.

    On SIGTERM or Ctrl-C they finish the step, save, and `Stopped` is raised, also after the last step: the
    caller may have more to do. The first step is not finished: it may include a minute of compilation. A run
    that another process has finished meanwhile is left as it is.

    A meta-iteration with small images leaves most of a large GPU idle. Several runs, each in a CUDA stream of
    its own, fill it; each computes the same numbers as alone.
    """
    runs = list(runs)
    notice = "" if quiet else "stopping after this iteration; press Ctrl-C again to stop at once"
    with StopRequest(notice) as request, ExitStack() as stack:
        stop = AgreedStop(request, world)
        options: dict[str, Any] = {"quiet": quiet, "bar": len(runs) == 1, "world": world}
        sessions = []
        for run in runs:
            # Several ranks cannot leave a run out once they have begun it.
            with suppress(AlreadyTrained) if world.size == 1 else nullcontext():
                sessions.append(stack.enter_context(TrainingSession(run, **options)))
        streams = [_stream(session.training, alone=len(runs) == 1) for session in sessions]
        request.at_once = world.size == 1
        while not all(session.done for session in sessions):
            for session, stream in zip(sessions, streams, strict=True):
                if not session.done:
                    with torch.cuda.stream(stream), _stopped_at_once(request, sessions):
                        session.advance()
                request.at_once = False
            signum = stop.after_step()
            if signum is not None:
                left = [session for session in sessions if not session.done]
                for session in left:
                    session.save()
                named = left or sessions  # in the last iteration: what follows training is left
                after = sorted({session.trainer.iteration for session in named})
                how = f"stopped after iteration {' and '.join(map(str, after))}"
                raise Stopped(signum, [session.run.folder for session in named], how=how)
    return runs


@contextmanager
def _stopped_at_once(request: StopRequest, sessions: Sequence[TrainingSession]) -> Iterator[None]:
    """Report a stop in the first step like any other: the state it began with is still the last one."""
    try:
        yield
    except KeyboardInterrupt:
        if not request.at_once or request.signum is None:
            raise
        folders = [session.run.folder for session in sessions]
        raise Stopped(request.signum, folders, how="stopped in the first step; nothing is lost") from None


def _stream(training: Training, *, alone: bool) -> torch.cuda.Stream | None:
    """A CUDA stream for one of several runs; None for PyTorch's current stream."""
    if alone or training.torch_device.type != "cuda":
        return None
    torch.cuda.synchronize()  # earlier work must be complete before another stream uses it
    return torch.cuda.Stream(training.torch_device)


def train_distributed(
    config: Config, folder: Path, world: World, *, quiet: bool = False, resume: bool = False
) -> Run:
    """Train `config` on all ranks of a world. Only rank 0 reads and writes `folder`.

    The folder must be new, unless `resume` is set or failed processes are restarted automatically; then it
    may hold this run, which resumes from its last state, or is left as it is if it is finished. A stop in the
    very last iteration is not raised: the run is complete.
    """
    run, finished = world.from_writer(lambda: _open_run(config, folder, resume or world.restarts))
    if finished:
        return run
    if world.is_writer:
        try:
            train_sessions([run], quiet=quiet, world=world)
        except Stopped:
            if not run.finished:
                raise
    else:
        train_without_writing(config, world)
    return run


def train_without_writing(config: Config, world: World) -> None:
    """Train on a rank other than 0: no files, no output; stops when rank 0 stops."""
    with StopRequest() as request:
        stop = AgreedStop(request, world)
        trainer = Trainer(config, every=log_interval(config.training), world=world)
        while not trainer.done:
            trainer.advance()
            signum = stop.after_step()
            if signum is not None and not trainer.done:
                raise SystemExit(128 + signum)


def load_trained(run: Run, world: World) -> FewShotLearner:
    """Load the trained learner of a run on every rank, buffers included; rank 0 reads the checkpoint."""
    return run.load(run.config.training.device, world.from_writer(run.learned))


def _open_run(config: Config, folder: Path, resume: bool) -> tuple[Run, bool]:
    """The run to train, and True if it is finished already."""
    check(config)
    if resume and (folder / CONFIG).exists():
        run = Run.open(folder)
        if run.config == config:
            return run, run.finished
    return Run.create(folder, config), False
