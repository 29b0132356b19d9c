"""Few-shot classification of images, as a problem to train on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.episodes import TaskSource
from pathaware.core.losses import Loss
from pathaware.core.settings import at_least
from pathaware.data.episodes import Augmentation
from pathaware.data.sine import SineWaves
from pathaware.models.mlp import mlp
from pathaware.training.metric import ACCURACY, MSE, Metric

if TYPE_CHECKING:
    from pathaware.data.episodes import LabelledImages
    from pathaware.data.store import ImageStore


@dataclass(frozen=True)
class Classification:
    """`ways` classes with `shots` images each to adapt on and `queries` each to be judged on.

    `data` names an imported set (see `pathaware data list`); `model` is `conv4`, `resnet12` or a function
    of your own as `package.module:function`, called with `ways`, `size`, `channels` and, if it is not 0,
    `width`. Training images are cropped and mirrored at random (`augment`), recoloured (`jitter`) and
    blanked in part (`erase`), see `Augmentation`. With `zero_head` the last layer starts at zero, so that
    all classes start alike.
    """

    name: ClassVar[str] = "classification"
    metric: ClassVar[Metric] = ACCURACY
    regression: ClassVar[bool] = False
    evaluation_tasks: ClassVar[int] = 600
    evaluation_batch: ClassVar[int] = 10  # of 84×84 images: about a gigabyte of activations
    training: ClassVar[Mapping[str, Any]] = {"validate": 1000}

    data: str = "glyphs"
    ways: int = 5
    shots: int = 5
    queries: int = 15
    model_name: str = "conv4"
    width: int = 0
    augment: bool = True
    jitter: float = 0.0
    erase: float = 0.0
    zero_head: bool = False
    data_dir: str = ""

    def __post_init__(self) -> None:
        at_least(2, ways=self.ways)
        at_least(1, shots=self.shots, queries=self.queries)
        at_least(0, width=self.width)
        self._augmentation("train")

    @property
    def label(self) -> str:
        return f"{self.data}-{self.ways}way-{self.shots}shot"

    @property
    def loss(self) -> Loss:
        return F.cross_entropy

    def _store(self) -> ImageStore:
        from pathaware.data.catalogue import store_folder
        from pathaware.data.store import MANIFEST

        directory = Path(self.data_dir) if self.data_dir else None
        manifest = store_folder(self.data, directory) / MANIFEST
        stamp = manifest.stat().st_mtime_ns if manifest.exists() else 0
        return _opened(self.data, manifest.parent.parent, stamp)

    def inputs(self) -> dict[str, Any]:
        """An `ImageInput` of the images in the store."""
        from pathaware.data.pixels import ImageInput

        return ImageInput.of(self._store()).to_dict()

    def model(self, inputs: Mapping[str, Any] | None = None) -> nn.Module:
        from pathaware.data.pixels import ImageInput
        from pathaware.models import build_model

        form = ImageInput.from_dict(inputs or self.inputs())
        model = build_model(self.model_name, self.ways, form.size, form.channels, self.width)
        if self.zero_head:
            from pathaware.core.head import last_linear

            _, head = last_linear(model)
            for parameter in head.parameters():
                nn.init.zeros_(parameter)
        return model

    def tasks(self, split: str, device: torch.device | str, dtype: torch.dtype) -> TaskSource:
        from pathaware.data.episodes import ImageEpisodes

        augmentation = self._augmentation(split)
        return ImageEpisodes(
            self._store(), split, self.ways, self.shots, self.queries, augmentation, device, dtype
        )

    def labelled(self, split: str, device: torch.device | str, dtype: torch.dtype) -> LabelledImages:
        """The same images with the labels of their classes, for ordinary training."""
        from pathaware.data.episodes import LabelledImages

        return LabelledImages(self._store(), split, self._augmentation(split), device, dtype)

    def _augmentation(self, split: str) -> Augmentation:
        """Only training images are varied."""
        return Augmentation(self.augment, self.jitter, self.erase) if split == "train" else Augmentation()

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(-1) == targets).double().mean(1)


@lru_cache(maxsize=2)
def _opened(name: str, directory: Path, stamp: int) -> ImageStore:
    """Training, validation and test share one open store, and so one copy of it on a GPU. The stamp makes
    a set that was imported again a different one."""
    from pathaware.data.catalogue import open_store

    return open_store(name, directory)


# Few-shot regression of sine waves, as a problem to train on.


@dataclass(frozen=True)
class Sine:
    """`shots` points of a wave to adapt on, `queries` for the meta-loss, `points` to be judged on."""

    name: ClassVar[str] = "sine"
    metric: ClassVar[Metric] = MSE
    regression: ClassVar[bool] = True
    evaluation_tasks: ClassVar[int] = 1000
    evaluation_batch: ClassVar[int] = 100
    training: ClassVar[Mapping[str, Any]] = {
        "iterations": 40_000,
        "tasks": 25,
        "rate": 2e-3,
        "clip": 1.0,
        "device": "cpu",
        "threads": 1,  # the tensors are so small that a second thread only gets in the way
    }

    shots: int = 10
    queries: int = 10
    points: int = 1000

    def __post_init__(self) -> None:
        at_least(1, shots=self.shots, queries=self.queries)
        at_least(2, points=self.points)

    @property
    def label(self) -> str:
        return f"sine-k{self.shots}"

    @property
    def loss(self) -> Loss:
        return F.mse_loss

    def inputs(self) -> dict[str, Any]:
        return {"features": 1}

    def model(self, inputs: Mapping[str, Any] | None = None) -> nn.Module:
        return mlp(1, (40, 40), 1)

    def tasks(self, split: str, device: torch.device | str, dtype: torch.dtype) -> TaskSource:
        """There are no fixed waves to split: those of validation and test are new, and judged all over."""
        if split == "train":
            return SineWaves(self.shots, self.queries, device=device, dtype=dtype)
        return SineWaves(self.shots, self.points, grid=True, device=device, dtype=dtype)

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().flatten(1).mean(1)


# What there is to learn, by name: tasks, network, loss and measure belong together.


class Problem(Protocol):
    """A problem is a dataclass of its settings; the trainer knows it by these members only."""

    name: ClassVar[str]
    metric: ClassVar[Metric]
    regression: ClassVar[bool]
    """True if targets are values, False if they are classes."""
    training: ClassVar[Mapping[str, Any]]
    """Defaults of the training settings that suit this problem."""

    evaluation_tasks: ClassVar[int]
    """How many new tasks the paper judges on."""
    evaluation_batch: ClassVar[int]
    """How many of them run side by side."""

    @property
    def label(self) -> str:
        """A short name for folders and figures, such as `sine-k10`."""
        ...

    @property
    def loss(self) -> Loss: ...

    def inputs(self) -> dict[str, Any]:
        """What the network reads, in numbers and names: enough to use it where its data set is not."""
        ...

    def model(self, inputs: Mapping[str, Any] | None = None) -> nn.Module:
        """The network at its start, for inputs that a run has kept or those of the data set."""
        ...

    def tasks(self, split: str, device: torch.device | str, dtype: torch.dtype) -> TaskSource:
        """Where tasks of a split come from: `train`, `val` or `test`."""
        ...

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metric of each task, `[T]`, from outputs and targets `[T, N, …]`."""
        ...


PROBLEMS: dict[str, type[Problem]] = {Sine.name: Sine, Classification.name: Classification}
