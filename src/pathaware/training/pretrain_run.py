"""Pretraining in a run folder: new or resumed, for a number of epochs or for a time."""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pathaware.core.errors import RunError, Stopped, UsageError
from pathaware.data.labelled import ClassImages
from pathaware.data.pixels import ImageInput
from pathaware.models.backbones import PreparedInput, frozen_backbone
from pathaware.training.checksummed import write_checksummed
from pathaware.training.classifier import (
    Classifier,
    PretrainedClassifier,
    Pretraining,
    load_classifier,
)
from pathaware.training.classifier_trainer import (
    QUERIES,
    SHOTS,
    ClassifierTrainer,
    by_class_means,
    measure_statistics,
    prototype_accuracy,
    sample_features,
)
from pathaware.training.config import setting_differences
from pathaware.training.distributed import StopRequest
from pathaware.training.pretraining import PROJECTION
from pathaware.training.progress import MetricsWindow, ProgressDisplay
from pathaware.training.provenance import environment, revision
from pathaware.training.run_folder import (
    CHECKPOINT,
    CONFIG,
    FolderLock,
    Run,
    RunFolder,
    must_exist,
    read_run_tables,
)
from pathaware.training.state import State

TIMED_STEPS = 20
"""Steps that are timed to find how many epochs fit into a time."""
RESERVE = 0.95
"""The part of that time that epochs may take; the rest is for validation and for saving."""


class PretrainRun(RunFolder):
    """A pretraining in a folder: like a `Run`, but its `iteration` in `metrics.jsonl` counts epochs."""

    def __init__(self, folder: Path, settings: Pretraining) -> None:
        super().__init__(folder)
        self.settings = settings

    @classmethod
    def create(cls, folder: Path, settings: Pretraining) -> PretrainRun:
        """Create a pretraining in a new or empty folder."""
        cls.create_folder(folder, settings.to_toml())
        run = cls(folder, settings)
        run.created = True
        return run

    @classmethod
    def open(cls, folder: Path) -> PretrainRun:
        """Open the pretraining in a folder, finished or not."""
        tables = read_run_tables(folder)
        if "pretraining" not in tables:
            raise UsageError(f"{folder} is not a pretraining", field="run")
        try:
            run = cls(folder, Pretraining.from_dict(tables["pretraining"]))
        except ValueError as error:
            raise UsageError(f"{folder / CONFIG}: {error}", field="run") from None
        run.tidy()
        return run

    @property
    def iterations(self) -> int:
        return self.settings.epochs

    def refuse_another(self, settings: dict[str, Any], path: Path) -> None:
        found = setting_differences(settings, self.settings.to_dict())
        if found:
            raise UsageError(
                f"{self.folder / CONFIG} is not what {path.name} was made with: {found}", field="run"
            )

    def save(self, model: Classifier, images: ClassImages, epoch: int, value: float | None) -> None:
        """Write the weights as the checkpoint."""
        about = {
            "epoch": epoch,
            "prototype_accuracy": value,
            "pretraining": self.settings.to_dict(),
            "inputs": images.inputs.to_dict(),
            "classes": images.names,
        }
        tensors = model.state_dict()
        if model.match is not None:
            tensors[PROJECTION] = model.subspace(sample_features(model, images, self.settings.seed))
        write_checksummed(self.folder / CHECKPOINT, tensors, about)

    def load(self, device: torch.device | str = "cpu") -> PretrainedClassifier:
        """The trained classifier in evaluation mode, with what is needed to use it."""
        return load_classifier(self.folder, device)


def default_folder(settings: Pretraining) -> Path:
    """The folder of a pretraining whose user named none."""
    return Path("runs") / f"pretrain-{settings.label}-seed{settings.seed}"


def pretrain(
    settings: Pretraining,
    folder: Path,
    *,
    minutes: float | None = None,
    quiet: bool = False,
    find: Callable[[str], Path] = Path,
) -> PretrainRun:
    """Pretrain in a new folder. With `minutes`, as many epochs as fit into that time replace `epochs`.

    `find` returns the folder of a teacher that is given by name, such as `photos`.
    """
    images = settings.images(settings.chosen_splits)
    teacher = _teacher(settings, images, find)
    settings.network(len(images.names), images.inputs)  # raises before a folder is created
    if minutes is not None:
        settings = dataclasses.replace(settings, epochs=epochs_in(60 * minutes, settings, images, teacher))
    run = PretrainRun.create(folder, settings)
    return _train(run, images, teacher, quiet)


def resume_pretraining(
    folder: Path, *, quiet: bool = False, find: Callable[[str], Path] = Path
) -> PretrainRun:
    """Resume a pretraining that was stopped; a finished one is returned unchanged."""
    must_exist(folder, "resume")
    run = PretrainRun.open(folder)
    if run.finished:
        return run
    images = run.settings.images(run.settings.chosen_splits)
    return _train(run, images, _teacher(run.settings, images, find), quiet)


def epochs_in(
    seconds: float, settings: Pretraining, images: ClassImages, teacher: Classifier | None = None
) -> int:
    """The number of epochs that fit into a time on this device, measured with a few steps."""
    trainer = ClassifierTrainer(settings, images, teacher)
    for _ in range(3):  # captures a graph or benchmarks algorithms
        trainer.advance().losses.sum().item()
    started, steps = time.perf_counter(), 0
    while steps == 0 or (steps < TIMED_STEPS and time.perf_counter() - started < seconds / 20):
        outcome = trainer.advance()
        steps += 1
    outcome.losses.sum().item()
    each = (time.perf_counter() - started) / steps
    return max(settings.warmup + 1, math.floor(RESERVE * seconds / (each * trainer.batches)))


def _teacher(settings: Pretraining, images: ClassImages, find: Callable[[str], Path]) -> Classifier | None:
    """The teacher: a pretraining of the same classes, or a model with a frozen backbone, for any classes."""
    if not settings.teacher:
        return None
    name, folder = settings.teacher, find(settings.teacher)
    if "pretraining" not in read_run_tables(folder):
        return _frozen_teacher(name, folder, images)
    found = PretrainRun.open(folder).load(images.device)
    if found.classes != images.names or found.inputs.size != images.inputs.size:
        raise UsageError(f"{name} was trained on other classes or sizes of images", field="teacher")
    return found.model


def _frozen_teacher(name: str, folder: Path, images: ClassImages) -> Classifier:
    """The frozen backbone of a model, with a classifier by class means."""
    run = Run.open(folder)
    backbone = frozen_backbone(run.load("cpu").model)
    if backbone is None:
        raise UsageError(
            f"{name} can only teach if it is a pretraining or has a frozen backbone", field="teacher"
        )
    own = ImageInput.from_dict(run.learned()[1])
    if own.channels != images.inputs.channels:
        raise UsageError(
            f"{name} expects {own.channels} colour channels, the images have {images.inputs.channels}",
            field="teacher",
        )
    given, wanted = ((each.mean, each.std) for each in (images.inputs, own))
    body = nn.Sequential(PreparedInput(own.size, given, wanted), backbone.body)
    return by_class_means(body, backbone.features, images)


def _train(run: PretrainRun, images: ClassImages, teacher: Classifier | None, quiet: bool) -> PretrainRun:
    """Train to the end. On SIGTERM or Ctrl-C the step is finished and saved, and `Stopped` is raised."""
    settings = run.settings
    lock = FolderLock(run.folder, f"{run.folder} is being trained by another process", field="run")
    try:
        if run.finished:  # by another process, before the lock was free
            return run
        trainer = ClassifierTrainer(settings, images, teacher)
        state = run.state(lambda line: print(line, file=sys.stderr, flush=True))
        best = None
        if state is not None:
            trainer.iteration, best = state.iteration, state.best
            state.restore(trainer.step.pair, trainer.step.optimizer)
        run.drop_metrics_after(trainer.iteration // trainer.batches)
        run.add_provenance(
            {
                "iteration": trainer.iteration,
                **revision(),
                "environment": environment(),
                "device": str(images.device),
            }
        )
        window = MetricsWindow(state.seconds if state else 0.0)
        if state is not None:
            window.restore(state.pending, images.device)
        validation = _validation_images(settings)
        display = ProgressDisplay(f"pretraining on {settings.label}", trainer.total, quiet=quiet)
        with StopRequest() as request, display:
            while not trainer.done:
                rate = trainer.rate
                window.add(trainer.advance())
                if display.due:
                    display.show(trainer.iteration, window.last_loss(), window.seconds)
                if trainer.iteration % trainer.batches == 0:
                    best = _close_epoch(run, trainer, window, rate, validation, best)
                    epoch = trainer.iteration // trainer.batches
                    if settings.save and epoch % settings.save == 0 and not trainer.done:
                        _save_state(run, trainer, window, best)
                if request.signum is not None and not trainer.done:
                    _save_state(run, trainer, window, best)
                    how = f"stopped after iteration {trainer.iteration}"
                    raise Stopped(request.signum, [run.folder], "pretrain", how)
        run.remove_states()
    except UsageError:
        run.remove_untrained()
        raise
    except OSError as error:
        raise RunError(f"{run.folder} cannot be written ({error.strerror or error})") from None
    finally:
        lock.release()
    return run


def _close_epoch(
    run: PretrainRun,
    trainer: ClassifierTrainer,
    window: MetricsWindow,
    rate: float,
    validation: ClassImages | None,
    best: float | None,
) -> float | None:
    """Validate, keep the checkpoint if it is the best, and log; return the best validation so far."""
    settings, model = run.settings, trainer.step.ema
    epoch = trainer.iteration // trainer.batches
    value = None
    if validation is not None and (trainer.done or epoch % settings.validate == 0):
        measure_statistics(model, trainer.images, settings.seed)
        value = prototype_accuracy(model, validation, settings.seed)
        if best is None or value > best:
            best = value
            run.save(model, trainer.images, epoch, value)
    progress = window.close(epoch, rate, value)
    if not math.isfinite(progress.loss):
        raise RunError("the loss is not finite: lower the learning rate, or use precision fp32")
    if trainer.done and validation is None:
        measure_statistics(model, trainer.images, settings.seed)
        run.save(model, trainer.images, epoch, None)
    run.append(progress)
    return best


def _save_state(
    run: PretrainRun, trainer: ClassifierTrainer, window: MetricsWindow, best: float | None
) -> None:
    step = trainer.step
    config = run.settings.to_dict()
    run.save_state(
        State.of(step.pair, step.optimizer, trainer.iteration, window.seconds, best, config, window.pending())
    )


def _validation_images(settings: Pretraining) -> ClassImages | None:
    """The images of validation classes, if there are some to choose a checkpoint by."""
    if not settings.validate or "val" in settings.chosen_splits:
        return None
    try:
        images = settings.images(["val"])
    except UsageError:
        return None
    usable = int(images.counts.min()) >= SHOTS + QUERIES and len(images.counts) > 1
    return images if usable else None
