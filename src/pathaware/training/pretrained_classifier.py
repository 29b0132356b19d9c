"""Classifiers of many classes whose features are used: network, loading, features and accuracy.

Not in the paper. Better features first are worth more to a small network than longer meta-training (Tian et
al., ECCV 2020, arXiv:2003.11539; Ye and Chao, ICLR 2022, arXiv:2106.16245): the body learns from every image
at once. `supervised` trains it.

The cosine classifier is that of Gidaris and Komodakis, CVPR 2018, arXiv:1804.09458.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import update_bn

from pathaware.core.batch_norm import FrozenBatchNorm
from pathaware.core.errors import UsageError
from pathaware.core.few_shot import FewShotLearner, part_of
from pathaware.core.last_layer import last_linear, replace_last_linear
from pathaware.core.prototype_start import PrototypeStart, directions
from pathaware.core.schema import read_table
from pathaware.core.seeding import generator
from pathaware.data.labelled import ClassImages
from pathaware.data.pixels import ImageInput
from pathaware.models import build_model
from pathaware.training.checksummed import CHECKPOINT, CorruptFile, load_parameters, read_checksummed
from pathaware.training.settings import Pretraining

PROJECTION = "projection"
"""The tensor of directions in a checkpoint, see `Classifier.subspace`."""
MEASURED = 4096
"""Images by which the statistics of batch norm and the directions of features are measured."""
SCALES = tuple(2.0 ** (k / 2) for k in range(17))
"""Scales of the cosine that a classifier by class means may have, 1 to 256."""
TASKS, SHOTS, QUERIES, WAYS = 1000, 5, 15, 5
"""The tasks of validation by prototypes."""
MATCH = "match.weight"
"""The weights of `Classifier.match` in a checkpoint."""


@dataclass(frozen=True)
class PretrainedClassifier:
    """A classifier of many classes, the images it expects and the names of its classes.

    `accuracy` is that of prototypes of validation classes, if those were not trained on.
    """

    model: Classifier
    inputs: ImageInput
    classes: list[str]
    epoch: int
    accuracy: float | None

    @property
    def body(self) -> nn.Module:
        """The frozen network without its last layer: images `[N, C, size, size]` → features `[N, …]`."""
        return self.model.body


@dataclass(frozen=True)
class AboutPretraining:
    """The facts in the checkpoint of a pretraining, besides its tensors."""

    epoch: int
    prototype_accuracy: float | None
    pretraining: dict[str, Any]
    inputs: dict[str, Any]
    classes: list[str]


def initialised(settings: Pretraining, classes: int, inputs: ImageInput, matched: int = 0) -> Classifier:
    """The classifier of a pretraining at its initialisation, which depends on the seed only.

    `matched` is the number of a teacher's features that it learns.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        shape = (inputs.size, inputs.channels, settings.width, settings.widths, settings.dropout)
        model = build_model(settings.model_name, 2, *shape)
        return Classifier(model, classes, settings.head, rotation=settings.rotation > 0, matched=matched)


def read_pretraining(folder: Path, setting: str = "") -> tuple[dict[str, Tensor], AboutPretraining]:
    """The tensors of a pretraining and what is known about them; `setting` begins the message of an error."""
    path = folder / CHECKPOINT
    if not path.is_file():
        raise UsageError(f"{setting}{folder} has no {CHECKPOINT}; name the folder of a finished pretraining")
    try:
        tensors, about = read_checksummed(path)
    except CorruptFile as error:
        raise UsageError(f"{setting}{path} cannot be read ({error})") from None
    if "pretraining" not in about:
        raise UsageError(f"{setting}{folder} is not a pretraining (see `pathaware pretrain`)")
    try:
        return tensors, read_table("pretraining", about, AboutPretraining, known_only=False)
    except UsageError as error:
        raise UsageError(f"{setting}{path}: {error.message}") from None


def load_classifier(folder: Path, device: torch.device | str = "cpu") -> PretrainedClassifier:
    """Load the classifier of a pretraining in evaluation mode, with what is needed to use it."""
    tensors, about = read_pretraining(folder)
    tensors.pop(PROJECTION, None)
    inputs = ImageInput.from_dict(about.inputs)
    matched = len(tensors[MATCH]) if MATCH in tensors else 0
    model = initialised(Pretraining.from_dict(about.pretraining), len(about.classes), inputs, matched)
    load_parameters(model, tensors, str(folder / CHECKPOINT))
    model = model.to(device, memory_format=torch.channels_last).eval().requires_grad_(False)  # type: ignore[call-overload]
    return PretrainedClassifier(model, inputs, about.classes, about.epoch, about.prototype_accuracy)


class CosineLinear(nn.Module):
    """Logits by the cosine of the angle between features and the weights of each class, times a scale."""

    def __init__(self, features: int, classes: int, scale: float = 10.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, features) * features**-0.5)
        self.scale = nn.Parameter(torch.tensor(scale))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=-1))


class Classifier(nn.Module):
    """A network without its last layer, a classifier of all classes, and further heads if wanted.

    `turns` predicts rotations; `match` predicts the `matched` features of a teacher.

    Batch norm has statistics, see `measure_statistics`, so that features can be used
    frozen, image by image.
    """

    def __init__(
        self, model: nn.Module, classes: int, head: str = "linear", rotation: bool = False, matched: int = 0
    ) -> None:
        super().__init__()
        _, last = last_linear(model)
        self.body = with_running_statistics(replace_last_linear(model, nn.Identity()))
        kind = CosineLinear if head == "cosine" else nn.Linear
        self.head: nn.Module = kind(last.in_features, classes)
        self.turns = nn.Linear(last.in_features, 4) if rotation else None
        self.match = nn.Linear(last.in_features, matched) if matched else None

    def features(self, x: Tensor) -> Tensor:
        found: Tensor = self.body(x.contiguous(memory_format=torch.channels_last))
        return found.flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits

    @torch.no_grad()
    def subspace(self, features: Tensor) -> Tensor:
        """The directions `[D, F]` in which these features `[N, F]` should be compared, the longest first.

        They are the directions of the classifier and, with equal weight, those of `match`, rotated so that
        each explains as much as possible of what those before it leave.
        """
        parts = [directions(self.head.get_parameter("weight"))]
        if self.match is not None:
            parts.append(self.match.weight)
        both = torch.cat([part / F.linear(features, part).norm(dim=-1).mean() for part in parts])
        turned: Tensor = torch.linalg.svd(F.linear(features, both), full_matrices=False).Vh @ both
        return turned


def with_running_statistics(model: nn.Module) -> nn.Module:
    """Make batch norm keep running statistics; the networks of this package are built without."""
    for module in model.modules():
        if isinstance(module, _BatchNorm) and not module.track_running_stats:
            module.track_running_stats = True
            module.running_mean = torch.zeros(module.num_features)
            module.running_var = torch.ones(module.num_features)
            module.num_batches_tracked = torch.tensor(0)
    return model


def read_start(learner: FewShotLearner, folder: Path) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of a pretraining that a learner's network starts from, and its directions of features.

    Raise if they do not fit. Batch-norm statistics are left out if the model has no place for them
    (`problem.statistics`). Biases that the model has folded into them are subtracted from the means.
    """
    tensors, _ = read_pretraining(folder, "start: ")
    model = learner.model
    own = model.state_dict()
    body = {n.removeprefix("body."): v for n, v in tensors.items() if n.startswith("body.")}
    for name, module in model.named_modules():
        if isinstance(module, FrozenBatchNorm) and module.folded in body:
            body[f"{name}.running_mean"] = body[f"{name}.running_mean"] - body.pop(module.folded)
    kept = {n: v for n, v in body.items() if n in own or not n.endswith(_STATISTICS)}
    for name, value in kept.items():
        if name not in own or own[name].shape != value.shape:
            raise UsageError(f"start: {folder} is of another network ({name} differs)")
    found = tensors.get(PROJECTION)
    return kept, directions(tensors["head.weight"]) if found is None else found


def start_from(learner: FewShotLearner, folder: Path) -> None:
    """Load the network of a pretraining, except for its classifier.

    Its directions of features become the projection of a learner that has one (`training.head`).
    """
    kept, projection = read_start(learner, folder)
    learner.model.load_state_dict({**learner.model.state_dict(), **kept})
    if (start := part_of(learner, PrototypeStart)) is not None:
        start.project(projection)


_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def measure_statistics(model: Classifier, images: ClassImages, seed: int = 0) -> None:
    """Set the statistics of batch norm to those of some of these images without augmentation.

    Running averages from training would belong to earlier weights and to cropped, mixed and rotated images,
    while features are used on plain images.
    """
    update_bn(images.plain(_sample(images, seed)), model)


@torch.no_grad()
def sample_features(model: Classifier, images: ClassImages, seed: int = 0) -> Tensor:
    """The features `[N, F]` of some of these images without augmentation."""
    return torch.cat([model.features(x).float() for x in images.plain(_sample(images, seed))])


def _sample(images: ClassImages, seed: int) -> Tensor:
    return torch.randperm(len(images), generator=generator(seed, "statistics"))[:MEASURED]


class Centred(nn.Module):
    """Features of unit length, without their mean."""

    middle: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("middle", torch.zeros(features))

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x.flatten(1), dim=-1) - self.middle


@torch.no_grad()
def by_class_means(body: nn.Module, features: int, images: ClassImages) -> Classifier:
    """A classifier of these classes around a trained body: the cosine to the mean features of each class.

    Features are directions from the mean direction of all images. The scale explains the labels best.
    """
    network = nn.Sequential(body, Centred(features), nn.Linear(features, 2))
    model = Classifier(network, len(images.names), "cosine").to(images.device).eval().requires_grad_(False)
    own = next(module for module in model.body.modules() if isinstance(module, Centred))
    found = torch.cat([model.features(x) for x in images.plain()])
    own.middle.copy_(found.mean(0))
    found = F.normalize(found - own.middle, dim=-1)
    labels = F.one_hot(images.labels, len(images.names)).to(found)
    means = F.normalize(labels.T @ found, dim=-1)
    cosines = found @ means.T
    scale = min(SCALES, key=lambda scale: F.cross_entropy(scale * cosines, images.labels).item())
    model.head.load_state_dict({"weight": means, "scale": torch.tensor(scale)})
    return model


@torch.no_grad()
def prototype_accuracy(model: Classifier, images: ClassImages, seed: int = 0) -> float:
    """Accuracy of nearest prototypes in 5-way 5-shot tasks of these classes."""
    model.eval()
    return separation(torch.cat([model.features(x).float() for x in images.plain()]), images.counts, seed)


def separation(features: Tensor, counts: Tensor, seed: int = 0, shots: int = SHOTS) -> float:
    """Accuracy of nearest prototypes (by cosine) in 5-way tasks.

    `features [N, F]` are those of all images of the first class, then of the second and so on; `counts` has
    the number of images of each.
    """
    features = F.normalize(features, dim=-1)
    random = generator(seed, "prototypes")
    ways = min(WAYS, len(counts))
    starts = counts.cumsum(0) - counts
    classes = torch.rand(TASKS, len(counts), generator=random).topk(ways).indices
    keys = torch.rand(TASKS, ways, int(counts.max()), generator=random)
    keys.masked_fill_(torch.arange(int(counts.max())) >= counts[classes, None], -1.0)
    chosen = (starts[classes, None] + keys.topk(shots + QUERIES).indices).to(features.device)
    right = []
    for task in chosen.split(100):
        found = features[task]  # [tasks, ways, images, features]
        prototypes = F.normalize(found[:, :, :shots].mean(2), dim=-1)
        queries = found[:, :, shots:].flatten(1, 2)
        nearest = (queries @ prototypes.mT).argmax(-1).unflatten(1, (ways, -1))
        own = torch.arange(ways, device=nearest.device)[:, None]
        right.append((nearest == own).double().mean((1, 2)))
    return torch.cat(right).mean().item()
