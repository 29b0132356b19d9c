"""The former place of `train_run`; `pathaware.training.train.train` is its successor."""

import warnings
from pathlib import Path

from pathaware.training.config import Config
from pathaware.training.loop import QUIET
from pathaware.training.progress import ProgressDisplay
from pathaware.training.run_folder import Run
from pathaware.training.train import train


def train_run(config: Config, folder: Path, *, quiet: bool = False) -> Run:
    """Train a configuration in a new folder; use `pathaware.training.train.train` instead."""
    warnings.warn("use pathaware.training.train.train instead of train_run", FutureWarning, stacklevel=2)
    return train(config, folder, display=QUIET if quiet else ProgressDisplay)
