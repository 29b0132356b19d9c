"""One run from configuration to folder."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import torch

from pathaware.errors import UsageError
from pathaware.seeding import generator
from pathaware.training.config import Config, Training
from pathaware.training.display import Display
from pathaware.training.run import CONFIG, HISTOGRAMS, Run
from pathaware.training.trainer import Trainer, build
from pathaware.training.watched import watched_tensor


def default_folder(config: Config) -> Path:
    """`runs/sine-k10-pamela-seed0`"""
    return Path("runs") / f"{config.problem.label}-{config.method}-seed{config.training.seed}"


class Session:
    """A run being trained: everything a run keeps is kept as it goes.

    The checkpoint is the best one by validation, or the last where nothing is validated.
    """

    def __init__(self, run: Run, *, quiet: bool = False, bar: bool = True) -> None:
        # TensorBoard takes seconds to import; nobody should wait for it to learn of a bad option.
        from torch.utils.tensorboard import SummaryWriter

        self.run, self.training = run, run.config.training
        self.every = max(1, min(100, self.training.iterations // 100))
        self.better = min if run.config.problem.metric == "mse" else max
        state = run.state()
        run.forget_after(state.iteration if state else 0)
        found = [row["validation"] for row in run.metrics() if row["validation"] is not None]
        self.best: float | None = self.better(found) if found else None
        self.trainer = Trainer(run.config, state, self.every, run.histograms() if state else None)
        title = f"{run.config.method} on {run.config.problem.label}" if bar else run.folder.name
        self.display = Display(title, self.training.iterations, quiet=quiet, bar=bar)
        self.board = SummaryWriter(run.folder, purge_step=self.trainer.iteration + 1 if state else None)

    @property
    def done(self) -> bool:
        return self.trainer.done

    def __enter__(self) -> Session:
        self.display.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.display.__exit__(None, None, None)
        self.board.close()

    def advance(self) -> None:
        """One meta-iteration, and what is to be kept of it."""
        progress = self.trainer.advance()
        if progress:
            self.run.append(progress)
            for name, value in asdict(progress).items():
                if name not in ("iteration", "seconds") and value is not None:
                    self.board.add_scalar(f"train/{name}", value, progress.iteration)
            self.display.show(progress)
            value = progress.validation
            if value is not None and (self.best is None or self.better(value, self.best) == value):
                self.best = value
                self.run.save(self.trainer.learner)
        if self.done:
            self._keep_histograms()
            if self.best is None:
                self.run.save(self.trainer.learner)
            self.run.forget_state()
        elif self.training.save and self.trainer.iteration % self.training.save == 0:
            self.keep()

    def keep(self) -> None:
        """Save where the run is, so that it can go on from here."""
        self._keep_histograms()
        self.run.save_state(self.trainer.state())

    def _keep_histograms(self) -> None:
        if self.trainer.histograms:
            self.trainer.histograms.save(self.run.folder / HISTOGRAMS)


def check(config: Config) -> None:
    """Build network and tasks once, so that a bad setting is an error before a folder is made."""
    training = config.training
    try:
        learner = build(config)
        if training.histograms:
            watched_tensor(learner)
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


def train_sessions(runs: Iterable[Run], *, quiet: bool = False) -> list[Run]:
    """Train these runs to their end, side by side on one GPU if they are several.

    A meta-iteration of small images leaves most of a large GPU idle; iterations of several runs, each in
    a stream of its own, fill it. Each run computes what it computes alone.
    """
    runs = list(runs)
    with ExitStack() as stack:
        sessions = [stack.enter_context(Session(run, quiet=quiet, bar=len(runs) == 1)) for run in runs]
        streams = [_stream(session.training, alone=len(runs) == 1) for session in sessions]
        while not all(session.done for session in sessions):
            for session, stream in zip(sessions, streams, strict=True):
                if not session.done:
                    with torch.cuda.stream(stream):
                        session.advance()
    return runs


def _stream(training: Training, *, alone: bool) -> torch.cuda.Stream | None:
    """A stream of the run's own; None stands for the one that PyTorch works in anyway."""
    if alone or training.torch_device.type != "cuda":
        return None
    torch.cuda.synchronize()  # what was sent to the device so far, every stream may use
    return torch.cuda.Stream(training.torch_device)
