"""Few-shot classification of images, as a problem to train on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.losses import Loss
from pathaware.settings import at_least
from pathaware.tasks.episodes import TaskSource
from pathaware.tasks.views import Augmentation

if TYPE_CHECKING:
    from pathaware.datasets import ImageStore
    from pathaware.tasks.labelled import LabelledImages


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
    metric: ClassVar[Literal["mse", "accuracy"]] = "accuracy"
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
        from pathaware.datasets.location import store_folder
        from pathaware.datasets.store import MANIFEST

        directory = Path(self.data_dir) if self.data_dir else None
        manifest = store_folder(self.data, directory) / MANIFEST
        stamp = manifest.stat().st_mtime_ns if manifest.exists() else 0
        return _opened(self.data, manifest.parent.parent, stamp)

    def inputs(self) -> dict[str, Any]:
        """A `PictureForm` of the images in the store."""
        from pathaware.datasets.pictures import PictureForm

        return PictureForm.of(self._store()).to_dict()

    def model(self, inputs: Mapping[str, Any] | None = None) -> nn.Module:
        from pathaware.datasets.pictures import PictureForm
        from pathaware.models.by_name import build_model

        form = PictureForm.from_dict(inputs or self.inputs())
        model = build_model(self.model_name, self.ways, form.size, form.channels, self.width)
        if self.zero_head:
            from pathaware.models.head import last_linear

            _, head = last_linear(model)
            for parameter in head.parameters():
                nn.init.zeros_(parameter)
        return model

    def tasks(self, split: str, device: torch.device | str, dtype: torch.dtype) -> TaskSource:
        from pathaware.tasks.images import ImageEpisodes

        augmentation = self._augmentation(split)
        return ImageEpisodes(
            self._store(), split, self.ways, self.shots, self.queries, augmentation, device, dtype
        )

    def labelled(self, split: str, device: torch.device | str, dtype: torch.dtype) -> LabelledImages:
        """The same images with the labels of their classes, for ordinary training."""
        from pathaware.tasks.labelled import LabelledImages

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
    from pathaware.datasets import open_store

    return open_store(name, directory)
