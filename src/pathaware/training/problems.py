"""Problems to train on: `sine` (regression) and `classification` (images), and the interface they share."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathaware.core.episodes import TaskSource
from pathaware.core.errors import UsageError
from pathaware.core.losses import Loss
from pathaware.data.augmentation import Augmentation
from pathaware.data.sine import SineWaves
from pathaware.models import mlp
from pathaware.models.efficientnet_lite import (
    NORMALISATION,
    VARIANTS,
    efficientnet_lite,
    load_pretrained,
)
from pathaware.training.metric import ACCURACY, MSE, Metric, accuracies, squared_errors
from pathaware.training.settings import ClassificationSettings, SineSettings

if TYPE_CHECKING:
    from pathaware.data.pixels import ImageInput
    from pathaware.data.store import ImageStore


class Problem(Protocol):
    """Tasks, network, loss and metric that belong together.

    A problem is a frozen dataclass of its settings. Training and evaluation use these members only.
    """

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    name: ClassVar[str]
    metric: ClassVar[Metric]
    regression: ClassVar[bool]
    """True if targets are values, False if they are classes."""
    training_defaults: ClassVar[Mapping[str, Any]]
    """Defaults of the training settings for this problem."""

    evaluation_tasks: ClassVar[int]
    """Number of new tasks of an evaluation, as in the paper."""
    evaluation_batch: ClassVar[int]
    """Number of tasks that are evaluated side by side."""

    @property
    def label(self) -> str:
        """A short name for folders and figures, such as `sine-k10`."""
        ...

    @property
    def paper_key(self) -> tuple[str, int] | None:
        """Data set and shots, by which `report.paper_numbers` lists the paper's results, or None."""
        ...

    @property
    def loss(self) -> Loss:
        """The loss of a task, for adaptation and meta-training."""
        ...

    def inputs(self) -> dict[str, Any]:
        """A description of the network's inputs, sufficient to use the network without the data set."""
        ...

    def model(self, inputs: Mapping[str, Any] | None = None) -> nn.Module:
        """Build the network for these inputs, or for those of the data set."""
        ...

    def tasks(self, split: str, device: torch.device | str, dtype: torch.dtype) -> TaskSource:
        """The tasks of a split: `train`, `val` or `test`."""
        ...

    @property
    def frozen(self) -> bool:
        """True if the body of the network is frozen, so that its features are computed once."""
        ...

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The metric of each task, `[T]`, from outputs and targets `[T, N, …]`."""
        ...


@dataclass(frozen=True)
class Classification(ClassificationSettings):
    """Few-shot classification: `ways` classes with `shots` support and `queries` query images each.

    >>> problem = Classification(data="glyphs", ways=5, shots=1)
    >>> problem.label, problem.metric.name
    ('glyphs-5way-1shot', 'accuracy')
    """

    name: ClassVar[str] = "classification"
    metric: ClassVar[Metric] = ACCURACY
    regression: ClassVar[bool] = False
    evaluation_tasks: ClassVar[int] = 600
    evaluation_batch: ClassVar[int] = 10  # with 84×84 images: about a gigabyte of activations
    training_defaults: ClassVar[Mapping[str, Any]] = {"validate": 1000}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._augmentation("train")

    @property
    def label(self) -> str:
        unlabelled = "" if self.labels else "-unlabelled"
        varying = "-varying" if self.varying else ""
        return f"{self.data}-{self.ways}way-{self.shots}shot{unlabelled}{varying}"

    @property
    def paper_key(self) -> tuple[str, int] | None:
        return (
            (self.data, self.shots)
            if self.ways == 5 and self.labels and not (self.weights or self.varying)
            else None
        )

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

    def _images(self, split: str) -> ImageStore:
        """The store with the images of a split, as the network takes them."""
        return self._store()

    def inputs(self) -> dict[str, Any]:
        """The `ImageInput` of the images in the store, and what is typical of them, as a dictionary."""
        from pathaware.data.pixels import ImageInput

        store = self._store()
        return {**ImageInput.of(store).to_dict(), "typical": _typical(store)}

    def model(self, inputs: Mapping[str, Any] | None = None, *, load: bool = False) -> nn.Module:
        """Build the network; pretrained weights are read with `load`, and without `inputs`."""
        from pathaware.data.pixels import ImageInput
        from pathaware.models import build_model

        form = ImageInput.from_dict(inputs or self.inputs())
        if self._pretrained:
            model = self._backbone(form, load=load or inputs is None)
        else:
            model = build_model(self.model_name, self.ways, form.size, form.channels, self.width, self.widths)
        if self.statistics == "running":
            from pathaware.core.batch_norm import freeze_running_statistics
            from pathaware.models.traced import fold_biases

            fold_biases(freeze_running_statistics(model, all_norms=True))
        if self.zero_head:
            from pathaware.core.last_layer import last_linear

            _, head = last_linear(model)
            for parameter in head.parameters():
                nn.init.zeros_(parameter)
        return model

    @property
    def _pretrained(self) -> bool:
        """True if the network needs more than building."""
        changed = self.size or self.normalisation == "imagenet"
        named = ":" in self.model_name or self.model_name in VARIANTS
        return bool(self.weights or self.adapt != "all" or named or changed)

    @property
    def constant_statistics(self) -> bool:
        """True if batch norm has the statistics of an earlier training, whatever the images."""
        pretrained = self.model_name.startswith("timm:") or self.model_name in VARIANTS
        return self.statistics == "running" or bool(self.weights) or pretrained

    def _backbone(self, form: ImageInput, *, load: bool) -> nn.Module:
        """Build the network around a backbone; with `load`, read its pretrained weights."""
        from pathaware.core.batch_norm import freeze_running_statistics
        from pathaware.models import backbones, build_model

        size, wanted = self.size or form.size, (form.mean, form.std)
        if self.model_name.startswith(backbones.TIMM):
            pretrained = load and not self.weights
            model = backbones.timm_model(self.model_name, self.ways, form.channels, pretrained=pretrained)
            own_size, wanted = backbones.timm_input(model)
            size = self.size or own_size
        elif self.model_name in VARIANTS:
            model = efficientnet_lite(self.model_name, self.ways, channels=form.channels)
            if load and not self.weights:
                load_pretrained(model, self.model_name)
            size, wanted = self.size or VARIANTS[self.model_name].size, NORMALISATION
        else:
            model = build_model(self.model_name, self.ways, size, form.channels, self.width, self.widths)
        freeze_running_statistics(model, all_norms=bool(self.weights))
        if self.weights and load:
            path = Path(self.weights).expanduser()
            backbones.load_weights(model, backbones.read_weights(path), self.weights)
        if self.normalisation != "auto":
            wanted = backbones.IMAGENET if self.normalisation == "imagenet" else (form.mean, form.std)
        if len(wanted[0]) != form.channels:
            raise UsageError(
                f"normalisation: the network is for {len(wanted[0])} channels, not {form.channels}"
            )
        if (size, wanted) != (form.size, (form.mean, form.std)):
            first = backbones.PreparedInput(size, (form.mean, form.std), wanted)
            model = nn.Sequential(OrderedDict(input=first, network=model))
        return backbones.restrict(model, self.adapt)

    @property
    def frozen(self) -> bool:
        return self.adapt == "head"

    def tasks(self, split: str, device: torch.device | str, dtype: torch.dtype) -> TaskSource:
        augmentation = self._augmentation(split)
        chosen = self.meta_split if split == "train" else split
        store = self._images(chosen)
        settings = chosen, self.ways, self.shots, self.queries, augmentation, device, dtype
        if split == "train" and not self.labels:
            from pathaware.data.unlabelled import UnlabelledEpisodes

            return UnlabelledEpisodes(store, *settings)
        from pathaware.data.episodes import ImageEpisodes

        if self.varying:
            from pathaware.data.unbalanced import VaryingTasks

            return VaryingTasks(ImageEpisodes(store, *settings, shuffle=False))
        mirrored = self.mirror_support and split == "train" and not self.frozen
        return ImageEpisodes(store, *settings, mirror_support=mirrored)

    def _augmentation(self, split: str) -> Augmentation:
        """Only training images are augmented."""
        if split != "train":
            return Augmentation()
        strengths = (self.jitter, self.erase, self.affine, self.grey, self.drop, self.cutmix)
        return Augmentation(self.augment, *strengths)

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return accuracies(outputs, targets)


@dataclass(frozen=True)
class CrossDomain(Classification):
    """Classification of the images of another data set than a network was trained on, for evaluation.

    `image_input` is that of the network: images are scaled to its size, made grey or repeated over channels,
    and normalised as in training. `CrossDomain.of` makes one from a trained problem.
    """

    image_input: ImageInput | None = None

    @classmethod
    def of(cls, trained: Problem, data: str, inputs: Mapping[str, Any]) -> CrossDomain:
        """The trained problem with the classes of `data`; `inputs` are those of the network.

        The data set is looked for where that of the training was, then in the usual folder.
        """
        from pathaware.data.catalogue import store_folder
        from pathaware.data.pixels import ImageInput
        from pathaware.data.store import MANIFEST

        if not isinstance(trained, Classification):
            raise UsageError(f"{trained.label} has no images", field="data")
        settings = {f.name: getattr(trained, f.name) for f in dataclasses.fields(Classification)}
        if trained.data_dir and not (store_folder(data, Path(trained.data_dir)) / MANIFEST).is_file():
            settings["data_dir"] = ""
        settings.update(data=data, labels=True, meta_split="train")
        # Models of earlier versions do not say whether their images may be mirrored; then `data` decides.
        problem = cls(**settings, image_input=ImageInput.from_dict({"mirror": True, **inputs}))
        mirrored = problem.mirror_support and bool(problem.inputs()["mirror"])
        return dataclasses.replace(problem, mirror_support=mirrored)

    def inputs(self) -> dict[str, Any]:
        """The `ImageInput` of the network; images are mirrored only if both data sets allow it."""
        assert self.image_input is not None
        mirror = self.image_input.mirror and self._store().manifest.mirror
        return {**self.image_input.to_dict(), "mirror": mirror}

    def _images(self, split: str) -> ImageStore:
        assert self.image_input is not None
        return _converted(self._store(), self.image_input, split)


@lru_cache(maxsize=1)
def _converted(store: ImageStore, image_input: ImageInput, split: str) -> ImageStore:
    """Convert the images of a split once."""
    return image_input.converted(store, split)


@lru_cache(maxsize=2)
def _opened(name: str, directory: Path, stamp: int) -> ImageStore:
    """Open a store once, so that training, validation and test share one copy of it on a GPU.

    The `stamp` distinguishes a data set from a later import under the same name.
    """
    from pathaware.data.catalogue import open_store

    return open_store(name, directory)


@lru_cache(maxsize=2)
def _typical(store: ImageStore) -> dict[str, Any]:
    """Statistics of up to 500 training images, evenly spread over the classes."""
    from pathaware.data.pixels import TypicalImages

    classes = store.split("train")
    members = classes.members
    chosen = members[torch.linspace(0, len(members) - 1, min(500, len(members))).long()]
    return TypicalImages.of(store.images[chosen]).to_dict()


@dataclass(frozen=True)
class Sine(SineSettings):
    """Few-shot regression of sine waves.

    A task has `shots` support points and `queries` query points; evaluation uses `points` on a grid.
    """

    name: ClassVar[str] = "sine"
    metric: ClassVar[Metric] = MSE
    regression: ClassVar[bool] = True
    frozen: ClassVar[bool] = False
    evaluation_tasks: ClassVar[int] = 1000
    evaluation_batch: ClassVar[int] = 100
    training_defaults: ClassVar[Mapping[str, Any]] = {
        "iterations": 40_000,
        "tasks": 25,
        "rate": 2e-3,
        "clip": 1.0,
        "device": "cpu",
        "threads": 1,  # tensors are so small that a second thread slows training down
    }

    @property
    def label(self) -> str:
        return f"sine-k{self.shots}"

    @property
    def paper_key(self) -> tuple[str, int] | None:
        return "sine", self.shots

    @property
    def loss(self) -> Loss:
        return F.mse_loss

    def inputs(self) -> dict[str, Any]:
        return {"features": 1}

    def model(self, inputs: Mapping[str, Any] | None = None) -> nn.Module:
        return mlp(1, (40, 40), 1)

    def tasks(self, split: str, device: torch.device | str, dtype: torch.dtype) -> TaskSource:
        """Waves are drawn anew for every split; those of `val` and `test` are evaluated on a grid."""
        if split == "train":
            return SineWaves(self.shots, self.queries, device=device, dtype=dtype)
        return SineWaves(self.shots, self.points, grid=True, device=device, dtype=dtype)

    def measure(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return squared_errors(outputs, targets)


PROBLEMS: dict[str, type[Problem]] = {Sine.name: Sine, Classification.name: Classification}
