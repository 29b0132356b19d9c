"""Trainings in memory and in folders, in the few words that tests need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pathaware.core.few_shot import FewShotLearner
from pathaware.training.config import Config
from pathaware.training.loop import Fit, run_to_end
from pathaware.training.meta_training import MetaTraining
from pathaware.training.run_folder import Run
from pathaware.training.settings import Pretraining
from pathaware.training.supervised import Supervised
from pathaware.training.train import train


def in_memory(settings: Config, **options: Any) -> Fit:
    return Fit(MetaTraining(settings, **options), **options)


def trained(settings: Config) -> FewShotLearner:
    fit = in_memory(settings)
    run_to_end([fit])
    return fit.objective.learner


def in_folder(run: Run, **options: Any) -> Fit:
    return Fit(MetaTraining(run.config), run, **options)


def resumed(folder: Path) -> Run:
    return train(Run.open(folder).config, folder, resume=True)


def pretraining(settings: Pretraining, *given: Any) -> Fit:
    """A pretraining in memory."""
    return Fit(Supervised(settings, *(given or [settings.images(["train"])])))


def continued(fit: Fit, folder: Path) -> Fit:
    """The training of another run that resumes from the state of this one."""
    run = Run.create(folder, fit.objective.config)
    run.save_state(fit.state())
    return in_folder(run)
