"""Runs and pretrainings in folders: what a training leaves, and loading what was trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pathaware.core.errors import UnfinishedRun, UsageError
from pathaware.core.few_shot import FewShotLearner
from pathaware.core.writing import remove_file
from pathaware.data.labelled import ClassImages
from pathaware.data.pixels import ImageInput
from pathaware.models.efficientnet_lite import VARIANTS, frozen_weights
from pathaware.training.checksummed import (
    CHECKPOINT,
    load_parameters,
    must_be_finite,
    read_declared,
    write_checksummed,
)
from pathaware.training.config import Config, differences, setting_differences
from pathaware.training.distributed import ALONE, World
from pathaware.training.gradient_probe import Histograms
from pathaware.training.meta_training import build
from pathaware.training.pretrained_classifier import (
    PROJECTION,
    Classifier,
    PretrainedClassifier,
    load_classifier,
    sample_features,
)
from pathaware.training.run_files import CONFIG, HISTOGRAMS, RunFolder, numbered_files, read_run_tables
from pathaware.training.settings import Pretraining

FIGURES = "figures"


@dataclass(frozen=True)
class AboutCheckpoint:
    """The metadata of a checkpoint."""

    config: dict[str, Any]
    inputs: dict[str, Any] | None = None
    frozen_weights: str | None = None
    """The network whose weights are in a package of its own, not in this file."""


@dataclass(frozen=True)
class AboutSnapshot:
    """The metadata of a snapshot."""

    config: dict[str, Any]
    validation: float


class Run(RunFolder):
    """A training run in a folder.

    The folder holds `config.toml`, `metrics.jsonl`, `provenance.json`, `checkpoint.safetensors`, TensorBoard
    events, `figures/`, and `histograms.safetensors` and snapshots if requested. An unfinished run also has
    its last two states, from which it resumes.

    >>> from pathaware.inference.trained_model import find_run
    >>> run = Run.open(find_run("sine"))  # a model that ships with the package
    >>> run.config.method, run.load("cpu").rule.steps
    ('pamela', 5)
    """

    def __init__(self, folder: Path, config: Config) -> None:
        super().__init__(folder, config)
        self.config, self.iterations = config, config.training.iterations
        self.built: FewShotLearner | None = None
        """The learner that `train` has built in this process."""

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.config.method} on {self.config.problem.label})"

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Open the run in a folder, finished or not."""
        tables = read_run_tables(folder)
        if "pretraining" in tables:
            raise UsageError(
                f"{folder} holds a pretraining; start a run from it with training.start={folder}", field="run"
            )
        try:
            return cls(folder, Config.of_run(tables))
        except ValueError as error:
            raise UsageError(f"{folder / CONFIG}: {error}", field="run") from None

    def differences(self, settings: dict[str, Any]) -> str:
        return differences(Config.of_run(settings), self.config)

    def histograms(self) -> Histograms | None:
        """Histograms of gradients over training, if the run has recorded them."""
        path = self.folder / HISTOGRAMS
        return Histograms.load(path) if path.exists() else None

    def save(self, learner: FewShotLearner, iteration: int) -> None:
        """Write θ₀ and Φ as the checkpoint of the run."""
        inputs = self.config.problem.inputs()
        about = {"iteration": iteration, "config": self.config.to_dict(), "inputs": inputs}
        write_checksummed(self.folder / CHECKPOINT, learner.state_dict(), about)

    def save_snapshot(self, learner: FewShotLearner, iteration: int, value: float) -> None:
        """Keep a checkpoint besides the best one; those with the worst validation are removed."""
        about = {"iteration": iteration, "validation": value, "config": self.config.to_dict()}
        write_checksummed(self.folder / f"snapshot-{iteration}.safetensors", learner.state_dict(), about)
        found = sorted(numbered_files(self.folder, "snapshot"), key=_snapshot_value)
        kept, lower_is_better = self.config.training.snapshots, self.config.problem.metric.lower_is_better
        for path in found[kept:] if lower_is_better else found[:-kept]:
            remove_file(path, self.folder)

    def load_snapshots(self, device: str = "auto") -> list[FewShotLearner]:
        """Load the learners of all snapshots, in the order of their iterations."""
        paths = numbered_files(self.folder, "snapshot")
        if not paths:
            raise UsageError(f"{self.folder} has no snapshots; train with training.snapshots", field="run")
        learners = []
        for path in paths:
            learner = self.load(device)
            tensors, about = read_declared(path, AboutSnapshot)
            self.refuse_another(about.config, path)
            load_parameters(learner, tensors, str(path))
            learners.append(learner)
        return learners

    def load(
        self, device: str = "auto", learned: tuple[dict[str, Tensor], dict[str, Any]] | None = None
    ) -> FewShotLearner:
        """Load the trained learner onto a device of this machine, whatever it was trained on.

        `learned` is the result of that method, if another process has read the checkpoint.
        """
        tensors, inputs = learned or self.learned()
        learner = build(self.config, replace(self.config.training, device=device).torch_device, inputs)
        load_parameters(learner, tensors, str(self.folder / CHECKPOINT))
        return learner

    def trained(self, world: World = ALONE) -> FewShotLearner:
        """The trained learner on every rank, buffers included; rank 0 reads the checkpoint.

        A learner that was built for the training gets the parameters of the checkpoint.
        """
        learned = world.from_writer(self.learned)
        if self.built is None:
            return self.load(self.config.training.device, learned)
        load_parameters(self.built, learned[0], str(self.folder / CHECKPOINT))
        return self.built

    def learned(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """θ₀ and Φ by name, and the description of the network's inputs (see `Problem.inputs`)."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            raise UnfinishedRun(self.folder)
        tensors, about = read_declared(path, AboutCheckpoint)
        self.refuse_another(about.config, path)
        must_be_finite(tensors, str(path))
        inputs = about.inputs or self.config.problem.inputs()
        try:
            if not self.config.problem.regression:
                ImageInput.from_dict(inputs)
        except UsageError as error:
            raise UsageError(f"{path}: {error.message}", field="run") from None
        if about.frozen_weights in VARIANTS:
            tensors |= frozen_weights(about.frozen_weights)
        return tensors, inputs


class PretrainRun(RunFolder):
    """A pretraining in a folder: like a `Run`, but its `iteration` in `metrics.jsonl` counts epochs."""

    def __init__(self, folder: Path, settings: Pretraining) -> None:
        super().__init__(folder, settings)
        self.settings, self.iterations = settings, settings.epochs

    @classmethod
    def open(cls, folder: Path) -> PretrainRun:
        """Open the pretraining in a folder, finished or not."""
        tables = read_run_tables(folder)
        if "pretraining" not in tables:
            raise UsageError(f"{folder} is not a pretraining", field="run")
        try:
            return cls(folder, Pretraining.from_dict(tables["pretraining"]))
        except ValueError as error:
            raise UsageError(f"{folder / CONFIG}: {error}", field="run") from None

    def differences(self, settings: dict[str, Any]) -> str:
        return setting_differences(settings, self.settings.to_dict())

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


def _snapshot_value(path: Path) -> float:
    """The validation of a snapshot."""
    return read_declared(path, AboutSnapshot)[1].validation
