"""A trained run, from a folder or shipped with the package, ready to adapt to classes of your own."""

from __future__ import annotations

import tomllib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pathaware.core.errors import UsageError, did_you_mean
from pathaware.core.few_shot import FewShotLearner, StepPredictions, part_of
from pathaware.core.reading import read_json
from pathaware.core.writing import replace_file, restore_folder
from pathaware.data.pixels import ImageInput, ImageLike, TypicalImages
from pathaware.inference.calibration import Calibration
from pathaware.inference.change_ways import change_ways
from pathaware.models.backbones import FrozenBackbone
from pathaware.training.checksummed import CHECKPOINT, must_be_finite, read_declared, write_checksummed
from pathaware.training.config import Config
from pathaware.training.evaluation import VIEWS, Views, mean_of_views, with_mirror_images
from pathaware.training.features import FeatureMemory
from pathaware.training.run_files import CONFIG, neighbours
from pathaware.training.run_folder import Run

SUPPORT, CARD, TYPICAL = "support.safetensors", "card.toml", "typical.json"
"""Files beside a checkpoint: images of a saved classifier, a shipped model's card, and what is typical of
the training images if the checkpoint is of an earlier version, which does not say."""
SHIPPED = Path(__file__).parent / "shipped"
BATCH = 256
"""Images classified at a time."""


def shipped() -> list[str]:
    """Return the names of the models that ship with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/config.toml"))


def find_run(run: str | Path, *, field: str = "run") -> Path:
    """Return the folder of a run; a name that is not that of a run may be that of a shipped model."""
    folder = Path(run)
    try:
        restore_folder(folder)
        exists = folder.exists()
    except (OSError, ValueError):  # a name that no file can have
        exists = False
    # A folder of images may well be called photos.
    if str(run) in shipped() and not (exists and (folder / CONFIG).exists()):
        return SHIPPED / str(run)
    if exists:
        return folder
    names = ", ".join(shipped())
    raise UsageError(
        f"{run} is not a run folder, nor a model that ships with the package ({names})"
        + did_you_mean(str(run), shipped() + neighbours(folder)),
        field=field,
    )


def read_card(name: str) -> dict[str, Any]:
    """The card of a shipped model: data, licence, accuracy, and what it is not for."""
    path = SHIPPED / name / CARD
    if name not in shipped() or not path.exists():
        known = ", ".join(shipped())
        raise UsageError(f"{name} must be one of {known}{did_you_mean(name, shipped())}", field="name")
    card: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return card


@dataclass(frozen=True)
class SupportSet:
    """Labelled images: `pixels [S, C, size, size]` in 0…255, and `labels [S]` as indices into `classes`.

    `names` are those of the images, if they have any.
    """

    classes: tuple[str, ...]
    pixels: Tensor
    labels: Tensor
    names: tuple[str, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class AdaptationStep:
    """Loss and accuracy on the support set after a number of inner steps."""

    step: int
    loss: float
    accuracy: float


@dataclass(frozen=True)
class AdaptedClassifier:
    """A network adapted to a support set, independent of the learner.

    `network` maps normalised images `[N, C, size, size]` to logits `[N, classes]`, each image independently
    of the others. `steps` has the loss and accuracy on the support set before adaptation and after each
    inner step. Logits are divided by `temperature` before they become probabilities.
    """

    network: nn.Module
    image_input: ImageInput
    steps: tuple[AdaptationStep, ...] = ()
    memory: FeatureMemory | None = None
    """Features of images by a frozen backbone, which all classifiers of a model share."""
    temperature: float = 1.0

    @torch.no_grad()
    def probabilities(self, pixels: Tensor) -> Tensor:
        """Return class probabilities `[N, classes]` for pixels `[N, C, size, size]` in 0…255."""
        parts = [
            (self.network(self.inputs(part)).double() / self.temperature).softmax(-1).cpu()
            for part in pixels.split(BATCH)
        ]
        return torch.cat(parts)

    def inputs(self, pixels: Tensor) -> Tensor:
        """The network's inputs for pixels `[N, C, size, size]` in 0…255: normalised, or features."""
        if self.memory is not None:
            return self.memory(pixels)
        return self.image_input.normalised(pixels.to(next(self.network.parameters()).device))

    @property
    def own_bytes(self) -> int:
        """Memory of the parameters that no other classifier shares."""
        shared = 0 if self.memory is None else sum(p.nbytes for p in self.memory.backbone.parameters())
        return sum(p.nbytes for p in self.network.parameters()) - shared


class MirrorMean(nn.Module):
    """Logarithms of the mean class probabilities of an image and its mirror image."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return mean_of_views(self.network(torch.cat([x, x.flip(-1)]))[None])[0]


class TrainedModel:
    """A model trained on images, with everything needed to adapt it; the data set is not needed.

    With `views="mirror"` it adapts to images and their mirror images, and probabilities are means over both.
    That is possible if the model was trained on images that may be mirrored, such as photographs.

    >>> model = TrainedModel.open("glyphs")
    >>> model.image_input.shape, model.ways
    ((1, 28, 28), 5)
    >>> from pathaware.data import open_store
    >>> glyphs = open_store("glyphs").images
    >>> classifier = model.adapt(glyphs[[0, 20]], torch.tensor([0, 1]), classes=2)
    >>> classifier.probabilities(glyphs[[1, 21]]).argmax(1).tolist()
    [0, 1]
    """

    def __init__(
        self,
        config: Config,
        learned: Mapping[str, Tensor],
        inputs: Mapping[str, Any],
        device: torch.device,
        views: Views = "single",
        calibration: Calibration | None = None,
    ) -> None:
        self.config, self.device, self.views, self.calibration = config, device, views, calibration
        self.image_input = ImageInput.from_dict(inputs)
        if views not in VIEWS:
            raise UsageError(f"{views!r} must be one of {', '.join(VIEWS)}", field="views")
        if views == "mirror" and (config.problem.frozen or not self.image_input.mirror):
            reason = (
                "a model with a frozen network mirrors its support images itself"
                if config.problem.frozen
                else "the model was not trained on images that may be mirrored"
            )
            raise UsageError(f"mirror: {reason}; use single", field="views")
        problem: Any = config.problem
        self.ways: int = problem.ways
        self.shots: int = problem.shots
        self._learned, self._inputs = learned, inputs
        self._learners: dict[int, FewShotLearner] = {}
        self._building = Lock()  # threads may share a model
        self._memory: FeatureMemory | None = None
        saved = inputs.get("typical")
        self.typical = None if saved is None else TypicalImages.from_dict(saved)
        """Statistics of the training images, if known."""
        self.folder: Path | None = None
        """The run folder it was opened from."""
        self.support: SupportSet | None = None
        """The labelled images of a saved classifier."""
        self._features: dict[str, Tensor] = {}
        """Saved `features` of these images, and those of their mirror images, `mirrored`."""

    @classmethod
    def open(cls, run: str | Path, device: str = "auto", views: Views = "single") -> TrainedModel:
        """Open the model in a run folder, or a shipped model by its name."""
        opened = Run.open(find_run(run))
        if opened.config.problem.regression:
            raise UsageError(
                f"{run} was trained on {opened.config.problem.label}, not on images", field="run"
            )
        learned, inputs = opened.learned()
        if "typical" not in inputs and (opened.folder / TYPICAL).exists():
            inputs["typical"] = read_json(opened.folder / TYPICAL, dict[str, Any])
        place = replace(opened.config.training, device=device).torch_device
        model = cls(opened.config, learned, inputs, place, views, Calibration.read(opened.folder))
        model.folder = opened.folder
        if (opened.folder / SUPPORT).exists():
            model.support, model._features = _read_saved_support(opened.folder, model.image_input)
        return model

    def write(self, folder: Path) -> None:
        """Write configuration and checkpoint, so that `open` finds the model in this folder."""
        replace_file(folder / CONFIG, self.config.to_toml(), folder)
        about = {"iteration": 0, "config": self.config.to_dict(), "inputs": self._inputs}
        write_checksummed(folder / CHECKPOINT, self._learned, about)

    def learner(self, classes: int) -> FewShotLearner:
        """Return the learner for this number of classes, see `pathaware.inference.change_ways`."""
        with self._building:
            if classes not in self._learners:
                self._learners[classes] = self.build(classes)
        return self._learners[classes]

    def build(self, classes: int, dtype: torch.dtype = torch.float32) -> FewShotLearner:
        """Build the learner for this number of classes in this precision."""
        learner = change_ways(self.config, self._learned, self._inputs, classes, self.device)
        return learner.to(dtype).eval()

    @property
    def memory(self) -> FeatureMemory | None:
        """The features of images that were seen before, if the model has a frozen backbone."""
        if self._memory is None and self.config.problem.frozen:
            backbone = part_of(self.learner(self.ways), FrozenBackbone)
            assert backbone is not None
            self._memory = FeatureMemory(backbone, self.image_input.normalised)
            if self.support is not None:
                for name, features in self._features.items():
                    if features.shape[1:] != (backbone.features,):
                        raise UsageError(
                            f"{SUPPORT}: {name} must have {backbone.features} columns", field="run"
                        )
                    own = self.support.pixels
                    self._memory.learn(own.flip(-1) if name == "mirrored" else own, features)
        return self._memory

    def pixels(self, images: Sequence[ImageLike] | Tensor, what: str = "images") -> Tensor:
        """Decode images in any form to pixels `[N, C, size, size]` in 0…255."""
        return self.image_input.stack(images, what)

    def adapt(self, pixels: Tensor, labels: Tensor, classes: int) -> AdaptedClassifier:
        """Adapt to pixels `[S, C, size, size]` with labels `[S]` in 0…classes-1.

        Every class has equal weight, however many images it has, and the order of the images has no effect.
        """
        return self.adapt_each([(pixels, labels)], classes)[0]

    def adapt_each(self, tasks: Sequence[tuple[Tensor, Tensor]], classes: int) -> list[AdaptedClassifier]:
        """Adapt to several tasks, pixels and labels each; those with equally many images run side by side."""
        learner = self.learner(classes)
        chosen = [self.arranged(pixels, labels, classes) for pixels, labels in tasks]
        adapted: dict[int, AdaptedClassifier] = {}
        for size in {len(indices) for indices in chosen}:
            members = [i for i, indices in enumerate(chosen) if len(indices) == size]
            x = torch.stack([self.support_inputs(tasks[i][0])[chosen[i]] for i in members])
            y = torch.stack([tasks[i][1].to(self.device)[chosen[i]] for i in members])
            if self.views == "mirror":
                x, y = with_mirror_images(x), y.repeat(1, 2)
            results = learner.adapt_each(x, y)
            for i, (network, predictions) in zip(members, results, strict=True):
                steps = _steps(predictions, chosen[i], tasks[i][1].to(self.device))
                temperature = self.temperature(classes, len(tasks[i][1]) / classes)
                views = MirrorMean(network) if self.views == "mirror" else network
                adapted[i] = AdaptedClassifier(views, self.image_input, steps, self.memory, temperature)
        return [adapted[i] for i in range(len(tasks))]

    def arranged(self, pixels: Tensor, labels: Tensor, classes: int) -> Tensor:
        """Indices of the examples in the order in which they are learned, some more than once."""
        weighs = "any shots" in self.learner(classes).allows  # such a head weighs classes itself
        return torch.arange(len(labels)) if weighs else arrange(pixels, labels, classes)

    def query_inputs(self, pixels: Tensor) -> Tensor:
        """The network's inputs for images that it predicts: normalised, or features if its body is frozen."""
        return self.memory(pixels) if self.memory is not None else self.normalised(pixels)

    @property
    def mirrors_support(self) -> bool:
        """Return True if features of labelled images are means over them and their mirror images."""
        return bool(getattr(self.config.problem, "mirror_support", False))

    def normalised(self, pixels: Tensor) -> Tensor:
        """Normalised images on the model's device."""
        return self.image_input.normalised(pixels.to(self.device))

    def support_inputs(self, pixels: Tensor) -> Tensor:
        """The inputs that the network adapts to: normalised images, or features if its body is frozen."""
        if self.memory is not None:
            return self.memory.support(pixels, mirrored=self.mirrors_support)
        return self.normalised(pixels)

    def temperature(self, classes: int, shots: float) -> float:
        """The temperature of a calibrated run; it was fitted to single views."""
        if self.calibration is None or self.views != "single":
            return 1.0
        return self.calibration.temperature(classes, shots)


def _steps(predictions: StepPredictions, chosen: Tensor, y: Tensor) -> tuple[AdaptationStep, ...]:
    """Loss and accuracy on images with labels `y [S]`, all of which are among the `chosen` ones."""
    last = chosen.bincount().cumsum(0) - 1  # of the places of each image, when places are sorted by image
    places = chosen.argsort(stable=True)[last].to(y.device)
    outputs = [output[0, places] for output in predictions.outputs]
    return tuple(
        AdaptationStep(j, cross_entropy(o, y).item(), (o.argmax(-1) == y).double().mean().item())
        for j, o in enumerate(outputs)
    )


@dataclass(frozen=True)
class AboutSupport:
    """The metadata of a saved support set."""

    classes: tuple[str, ...]
    names: tuple[str, ...]


def _read_saved_support(folder: Path, form: ImageInput) -> tuple[SupportSet, dict[str, Tensor]]:
    path = folder / SUPPORT
    tensors, about = read_declared(path, AboutSupport)
    count, classes = len(about.names), range(len(about.classes))
    pixels, labels = (tensors.get(name, torch.zeros(0)) for name in ("pixels", "labels"))
    features = {name: value for name, value in tensors.items() if name in ("features", "mirrored")}
    wrong = ""
    if pixels.dtype != torch.uint8 or pixels.shape != (count, *form.shape):
        wrong = f"pixels must be bytes {[count, *form.shape]}"
    elif labels.dtype != torch.int64 or labels.shape != (count,) or {*labels.tolist()} != {*classes}:
        wrong = f"labels must be {count} indices of its {len(classes)} classes, which all have an image"
    elif not 2 <= len(classes) == len(set(about.classes)):
        wrong = "classes must be two or more names, all different"
    elif any(value.dtype != torch.float32 or value.shape[:1] != (count,) for value in features.values()):
        wrong = f"features must be {count} rows of float32"
    if wrong:
        raise UsageError(f"{path} cannot be read ({wrong})", field="run")
    must_be_finite(features, str(path))
    return SupportSet(about.classes, pixels, labels, names=about.names), features


def arrange(pixels: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return indices of examples such that all classes have equally many; small classes are repeated.

    Training tasks are balanced, and a mean loss over unbalanced examples favours the largest class. The order
    is that of a hash of each image: it depends on the images alone, not on the order in which they are given,
    and it mixes the classes, as training does. That matters to sequence models, such as MANN.
    """
    images, own = pixels.cpu().numpy(), labels.tolist()
    keys = [zlib.crc32(image.tobytes(), label) for image, label in zip(images, own, strict=True)]
    by_key = sorted(range(len(keys)), key=keys.__getitem__)
    members = [[i for i in by_key if own[i] == label] for label in range(classes)]
    most = max(map(len, members))
    rounds = [(n // len(each), each[n % len(each)]) for each in members for n in range(most)]
    rounds.sort(key=lambda pair: zlib.crc32(pair[0].to_bytes(4, "little"), keys[pair[1]]))
    return torch.tensor([i for _, i in rounds])
