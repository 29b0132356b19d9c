"""One run from configuration to folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pathaware.learner import MetaLearner
from pathaware.training.config import Config, Training
from pathaware.training.display import Display
from pathaware.training.histograms import Histograms
from pathaware.training.run import CONFIG, HISTOGRAMS, Run
from pathaware.training.trainer import Progress, build, train
from pathaware.training.watched import watched_tensor


def default_folder(config: Config) -> Path:
    """`runs/sine-k10-pamela-seed0`"""
    return Path("runs") / f"{config.problem.label}-{config.method}-seed{config.training.seed}"


def train_run(config: Config, folder: Path, *, quiet: bool = False) -> Run:
    """Train `config` in a new folder and keep everything a run keeps.

    The checkpoint is the best one by validation, or the last where nothing is validated.
    """
    # Network and tasks are built once before the folder is, so that a bad setting leaves nothing behind.
    training = config.training
    histograms = _histograms(training, build(config))
    for split in ("train", "val") if training.validate else ("train",):
        config.problem.tasks(split, training.torch_device, training.torch_dtype)
    run = Run.create(folder, config)
    # TensorBoard takes seconds to import; nobody should wait for it to learn of a bad option.
    from torch.utils.tensorboard import SummaryWriter

    title = f"{config.method} on {config.problem.label}"
    better = min if config.problem.metric == "mse" else max
    best: float | None = None
    with Display(title, training.iterations, quiet=quiet) as display, SummaryWriter(folder) as board:

        def report(progress: Progress, learner: MetaLearner) -> None:
            nonlocal best
            run.append(progress)
            for name, value in asdict(progress).items():
                if name not in ("iteration", "seconds") and value is not None:
                    board.add_scalar(f"train/{name}", value, progress.iteration)
            display.show(progress)
            value = progress.validation
            if value is not None and (best is None or better(value, best) == value):
                best = value
                run.save(learner)
            if value is not None and histograms:
                histograms.save(folder / HISTOGRAMS)

        learner = train(config, report, max(1, min(100, training.iterations // 100)), histograms)
    if best is None:
        run.save(learner)
    if histograms:
        histograms.save(folder / HISTOGRAMS)
    return run


def _histograms(training: Training, learner: MetaLearner) -> Histograms | None:
    return Histograms(watched_tensor(learner)) if training.histograms else None


def train_or_open(config: Config, folder: Path, *, quiet: bool = False) -> Run:
    """The run in `folder` if it is this configuration's and complete, else a new one."""
    if (folder / CONFIG).exists():
        run = Run.open(folder)
        if run.config == config and run.finished:
            return run
    return train_run(config, folder, quiet=quiet)
