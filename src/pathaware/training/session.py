"""One run from configuration to folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from pathaware.training.config import Config
from pathaware.training.display import Display
from pathaware.training.run import CHECKPOINT, CONFIG, Run
from pathaware.training.trainer import Progress, train


def default_folder(config: Config) -> Path:
    """`runs/sine-pamela-k10-seed0`"""
    shots = getattr(config.problem, "shots", None)
    parts = [config.problem.name, config.method, f"k{shots}" if shots else "", f"seed{config.training.seed}"]
    return Path("runs") / "-".join(part for part in parts if part)


def train_run(config: Config, folder: Path, *, quiet: bool = False) -> Run:
    """Train `config` in a new folder and keep everything a run keeps."""
    # TensorBoard takes seconds to import; nobody should wait for it to learn of a bad option.
    run = Run.create(folder, config)
    from torch.utils.tensorboard import SummaryWriter

    iterations = config.training.iterations
    title = f"{config.method} on {config.problem.name}"
    with Display(title, iterations, quiet=quiet) as display, SummaryWriter(folder) as board:

        def report(progress: Progress) -> None:
            run.append(progress)
            for name, value in asdict(progress).items():
                if name not in ("iteration", "seconds"):
                    board.add_scalar(f"train/{name}", value, progress.iteration, progress.seconds)
            display.show(progress)

        learner = train(config, report, every=max(1, min(100, iterations // 100)))
    run.save(learner)
    return run


def train_or_open(config: Config, folder: Path, *, quiet: bool = False) -> Run:
    """The run in `folder` if it is this configuration's and complete, else a new one."""
    if (folder / CONFIG).exists() and (folder / CHECKPOINT).exists():
        run = Run.open(folder)
        if run.config == config:
            return run
    return train_run(config, folder, quiet=quiet)
