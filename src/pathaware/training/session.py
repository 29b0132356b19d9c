"""One run from configuration to folder."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from pathaware.core.errors import RunError, Stopped, UsageError
from pathaware.core.learner import FewShotLearner
from pathaware.core.seeding import generator
from pathaware.methods import get_method
from pathaware.training.config import Config, Training, differences
from pathaware.training.distributed import ALONE, World
from pathaware.training.gradient_probe import probed_tensor
from pathaware.training.progress import Display
from pathaware.training.run_folder import CONFIG, HISTOGRAMS, FolderLock, Run
from pathaware.training.stopping import AgreedStop, StopRequest
from pathaware.training.trainer import Progress, Trainer, build


def default_folder(config: Config) -> Path:
    """`runs/sine-k10-pamela-seed0`"""
    method = config.method.replace(":", "-")  # of one's own, as module:METHOD
    return Path("runs") / f"{config.problem.label}-{method}-seed{config.training.seed}"


def reports_every(training: Training) -> int:
    """Iterations between reports: a hundred reports of a short run, and more of a long one."""
    return max(1, min(100, training.iterations // 100))


class Session:
    """A run being trained: everything a run keeps is kept as it goes.

    The checkpoint is the best one by validation, or the last where nothing is validated. No second process
    can train the same run meanwhile.
    """

    def __init__(self, run: Run, *, quiet: bool = False, bar: bool = True, world: World = ALONE) -> None:
        # TensorBoard takes seconds to import; nobody should wait for it to learn of a bad option.
        from torch.utils.tensorboard import SummaryWriter

        self.run, self.training = run, run.config.training
        self.every = reports_every(self.training)
        self.lock = FolderLock(run.folder, f"RUN: {run.folder} is being trained by another process")
        try:
            state = run.state(_say)
            run.forget_after(state.iteration if state else 0)
            self.best = state.best if state else None
            self.saved = state.iteration if state else 0
            histograms = run.histograms() if state else None
            self.trainer = Trainer(run.config, state, self.every, histograms, world)
            title = f"{run.config.method} on {run.config.problem.label}" if bar else run.folder.name
            self.display = Display(title, self.training.iterations, quiet=quiet, bar=bar)
            self.board = SummaryWriter(run.folder, purge_step=self.trainer.iteration + 1 if state else None)
        except BaseException:
            self.lock.release()
            raise

    @property
    def done(self) -> bool:
        return self.trainer.done

    def __enter__(self) -> Session:
        self.display.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.display.__exit__(None, None, None)
        if kind is not RunError:  # where nothing can be written, closing would wait for it for ever
            self.board.close()
        self.lock.release()

    def advance(self) -> None:
        """One meta-iteration, and what is to be kept of it."""
        progress = self.trainer.advance()
        if progress:
            with self._writing():
                self._keep(progress)
        if self.done:
            self.run.forget_states()
        elif progress and 0 < self.training.save <= self.trainer.iteration - self.saved:
            self.save()  # beside a report, so that nothing waits for the next one

    def save(self) -> None:
        """Write where the run stands, so that it can go on from here."""
        with self._writing():
            self._keep_histograms()
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

    def _keep(self, progress: Progress) -> None:
        value = progress.validation
        if value is not None and self.run.config.problem.metric.improves(value, self.best):
            self.best = value
            self.run.save(self.trainer.learner, progress.iteration)
        if self.done:
            self._keep_histograms()
            if self.best is None:
                self.run.save(self.trainer.learner, progress.iteration)
        # Only now, since the report of the last iteration is what makes a run a finished one.
        self.run.append(progress)
        for name, number in asdict(progress).items():
            if name not in ("iteration", "seconds") and number is not None:
                self.board.add_scalar(f"train/{name}", number, progress.iteration)
        self.display.show(progress)

    def _keep_histograms(self) -> None:
        if self.trainer.histograms:
            self.trainer.histograms.save(self.run.folder / HISTOGRAMS)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def check(config: Config) -> None:
    """Build network and tasks once, so that a bad setting is an error before a folder is made."""
    training = config.training
    try:
        learner = build(config)
        get_method(config.method).estimator(config.method_settings)
        if training.histograms:
            probed_tensor(learner)
        for split in ("train", "val") if training.validate else ("train",):
            source = config.problem.tasks(split, training.torch_device, training.torch_dtype)
            count = training.tasks if split == "train" else 1
            source.draw(count, generator(training.seed, "check"))
    except (MemoryError, OverflowError, RuntimeError) as error:
        # What PyTorch cannot allocate or count, it says in many ways.
        reason = str(error).strip().split("\n")[0]
        raise UsageError(f"these settings cannot be computed here ({reason})") from None


def train_run(config: Config, folder: Path, *, quiet: bool = False) -> Run:
    """Train `config` in a new folder."""
    check(config)
    return train_sessions([Run.create(folder, config)], quiet=quiet)[0]


def asked_to_resume(folder: Path, asked: Mapping[str, Mapping[str, Any]]) -> Run:
    """The run that is to go on. Settings that were `asked` for must be those it has."""
    run = Run.open(folder)
    tables = run.config.to_dict()
    for table, values in asked.items():
        tables[table].update(values)
    found = differences(run.config, Config.from_dict(tables))
    if found:
        raise UsageError(f"{folder} was begun with other settings: {found}", field="resume")
    return run


def resume_run(folder: Path, *, quiet: bool = False) -> Run:
    """Go on with a run that was stopped; one that is finished is left as it is."""
    run = Run.open(folder)
    return run if run.finished else train_sessions([run], quiet=quiet)[0]


def train_or_open(config: Config, folder: Path, *, quiet: bool = False) -> Run:
    """The run of this configuration in `folder`: opened if it is complete, continued if it was stopped."""
    run = open_or_create(config, folder)
    return run if run.finished else train_sessions([run], quiet=quiet)[0]


def open_or_create(config: Config, folder: Path) -> Run:
    """The run of this configuration in `folder`, new or as it was left."""
    if not (folder / CONFIG).exists():
        check(config)
        return Run.create(folder, config)
    run = Run.open(folder)
    if run.config != config:
        Run.create(folder, config)  # which says that the folder holds another run
    return run


def train_sessions(runs: Iterable[Run], *, quiet: bool = False, world: World = ALONE) -> list[Run]:
    """Train these runs to their end, side by side on one GPU if they are several.

    On SIGTERM or Ctrl-C they finish the step, save, and `Stopped` is raised.

    A meta-iteration of small images leaves most of a large GPU idle; iterations of several runs, each in
    a stream of its own, fill it. Each run computes what it computes alone.
    """
    runs = list(runs)
    with StopRequest() as request, ExitStack() as stack:
        stop = AgreedStop(request, world)
        options: dict[str, Any] = {"quiet": quiet, "bar": len(runs) == 1, "world": world}
        sessions = [stack.enter_context(Session(run, **options)) for run in runs]
        streams = [_stream(session.training, alone=len(runs) == 1) for session in sessions]
        while not all(session.done for session in sessions):
            for session, stream in zip(sessions, streams, strict=True):
                if not session.done:
                    with torch.cuda.stream(stream):
                        session.advance()
            signum = stop.after_step()
            if signum is not None:
                left = [session for session in sessions if not session.done]
                for session in left:
                    session.save()
                raise Stopped(signum, [session.run.folder for session in left])
    return runs


def _stream(training: Training, *, alone: bool) -> torch.cuda.Stream | None:
    """A stream of the run's own; None stands for the one that PyTorch works in anyway."""
    if alone or training.torch_device.type != "cuda":
        return None
    torch.cuda.synchronize()  # what was sent to the device so far, every stream may use
    return torch.cuda.Stream(training.torch_device)


def train_distributed(
    config: Config, folder: Path, world: World, *, quiet: bool = False, going_on: bool = False
) -> Run:
    """Train `config` in `folder`, which the writer alone reads and writes.

    The folder must be new, unless `going_on`. Where processes that die are started again, it may also hold
    this very run, which then goes on from its last saved state, or is left as it is if it was complete.
    """
    run, finished = world.from_writer(lambda: _open_run(config, folder, going_on or world.restarts))
    if finished:
        return run
    if world.is_writer:
        train_sessions([run], quiet=quiet, world=world)
    else:
        train_without_writing(config, world)
    return run


def train_without_writing(config: Config, world: World) -> None:
    """Do the share of a process that keeps nothing; it stops where the writer stops, and in silence."""
    with StopRequest() as request:
        stop = AgreedStop(request, world)
        trainer = Trainer(config, every=reports_every(config.training), world=world)
        while not trainer.done:
            trainer.advance()
            signum = stop.after_step()
            if signum is not None:
                raise SystemExit(128 + signum)


def load_trained(run: Run, world: World) -> FewShotLearner:
    """What the run came to, in every process."""
    learner = run.load(run.config.training.device) if world.is_writer else build(run.config)
    world.equalise(list(learner.parameters()))
    return learner


def _open_run(config: Config, folder: Path, going_on: bool) -> tuple[Run, bool]:
    """The run to train, and whether there is nothing left to do."""
    check(config)
    if going_on and (folder / CONFIG).exists():
        run = Run.open(folder)
        if run.config == config:
            return run, run.finished
    return Run.create(folder, config), False
